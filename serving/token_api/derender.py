"""Token ids as answers: what chats and completions would have answered, had the tokens been generated for them."""

from collections.abc import Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from jaxllm.engine.validation import RequestLimits
from jaxllm.errors import RequestError
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.serving.http.identity import identify
from jaxllm.serving.http.limits import AdmissionLimits
from jaxllm.serving.http.responses import json_response
from jaxllm.serving.http.state import server_of
from jaxllm.serving.openai.chat.call import prepare_chat
from jaxllm.serving.openai.chat.plan import ChatCall, ReplyPlan
from jaxllm.serving.openai.chat.writer import ChatWriter
from jaxllm.serving.openai.completions.routes import prepare_completions, prompts_of
from jaxllm.serving.openai.completions.writer import CompletionWriter
from jaxllm.serving.openai.protocol.chat import ChatCompletion, ChatCompletionRequest
from jaxllm.serving.openai.protocol.completions import Completion, CompletionRequest
from jaxllm.serving.openai.protocol.usage import Usage
from jaxllm.serving.text.input_processor import TextRequest
from jaxllm.serving.token_api.protocol import DerenderChatRequest, DerenderCompletionRequest, GivenTokens
from jaxllm.serving.token_api.results import check_given, num_listed, result_of

_ONE_PER_PROMPT = "give one per prompt"
_NOT_TOLD = "{}: not available in responses of token IDs"


async def derender_chat(request: Request) -> Response:
    """Read token ids as the answer to a conversation: its reasoning, calls and text."""
    server = server_of(request)
    body = await server.bodies.read(request, DerenderChatRequest)
    given, asked = body.generate_response, body.chat_request
    await server.bodies.work(request, lambda: check_given("generate_response", given, server.limits))
    identity = identify(request, server, body, "chatcmpl")
    if asked is None:
        listed = num_listed(given)
        asked = ChatCompletionRequest(messages=[], logprobs=listed is not None, top_logprobs=listed)
        plain = _text_request(identity.engine_ids[0], listed)
        call = ChatCall(plain, ReplyPlan(prompt="", params=plain.params))
    else:
        if asked.prompt_logprobs is not None:
            raise RequestError(_NOT_TOLD.format("chat_request.prompt_logprobs"), "chat_request.prompt_logprobs")
        call = await prepare_chat(request, server, asked, identity.engine_ids)
    made = call.request
    made.prompt_token_ids = body.prompt_token_ids or given.prompt_token_ids or made.prompt_token_ids
    _check_logprobs("generate_response", given, made.params)

    def read() -> ChatCompletion:
        answer = ChatWriter(server, asked, identity, call).whole([result_of(server.tokenizer, made, given)])
        if body.prompt_token_ids is None and body.prompt_tokens is not None:
            answer.usage = _with_prompt(answer.usage, body.prompt_tokens)
        return answer

    return json_response(await server.llm.run_text(read))


async def derender_completion(request: Request) -> Response:
    """Read token ids as the continuations of prompts."""
    server = server_of(request)
    body = await server.bodies.read(request, DerenderCompletionRequest)
    answers, asked = body.generate_responses, body.completion_request
    _check_numbers(body)
    await server.bodies.work(request, lambda: _check_all(answers, server.limits))
    identity = identify(request, server, body, "cmpl", len(answers))
    if asked is None:
        listed = max((num for each in answers if (num := num_listed(each)) is not None), default=None)
        asked = CompletionRequest(prompt="", logprobs=listed, n=max(len(each.choices) for each in answers))
        requests = [_text_request(name, listed) for name in identity.engine_ids]
    else:
        _check_answerable(asked)
        prompts = prompts_of(asked, RequestLimits.of(server.llm.info))
        if len(prompts) != len(answers):
            raise RequestError(
                f"generate_responses: {len(answers)} for {len(prompts)} prompts; {_ONE_PER_PROMPT}",
                "generate_responses",
            )
        _check_choices(answers, asked.n or 1)
        requests = await prepare_completions(request, server, asked, prompts, identity.engine_ids)
    for index, (made, given) in enumerate(zip(requests, answers, strict=True)):
        own = None if body.prompt_token_ids is None else body.prompt_token_ids[index]
        made.prompt_token_ids = own or given.prompt_token_ids or made.prompt_token_ids
        _check_logprobs(f"generate_responses[{index}]", given, made.params)

    def read() -> Completion:
        results = [result_of(server.tokenizer, made, given) for made, given in zip(requests, answers, strict=True)]
        answer = CompletionWriter(server, asked, identity, requests).whole(results)
        if body.prompt_token_ids is None and body.prompt_tokens is not None:
            assert isinstance(answer.usage, Usage)
            answer.usage = _with_prompt(answer.usage, sum(body.prompt_tokens))
        return answer

    return json_response(await server.llm.run_text(read))


def _text_request(engine_id: str, listed: int | None) -> TextRequest:
    """A request known only by its answer."""
    params = SamplingParams(logprobs=listed)
    return TextRequest(request_id=engine_id, prompt=None, prompt_token_ids=[], params=params, children=[])


def _check_all(answers: Sequence[GivenTokens], limits: AdmissionLimits) -> None:
    for index, given in enumerate(answers):
        check_given(f"generate_responses[{index}]", given, limits)


def _check_numbers(body: DerenderCompletionRequest) -> None:
    if not body.generate_responses:
        raise RequestError(f"generate_responses: the list is empty; {_ONE_PER_PROMPT}", "generate_responses")
    for name in ("prompt_token_ids", "prompt_tokens"):
        given = getattr(body, name)
        if given is not None and len(given) != len(body.generate_responses):
            raise RequestError(
                f"{name}: {len(given)} for {len(body.generate_responses)} answers; {_ONE_PER_PROMPT}", name
            )


def _check_choices(answers: Sequence[GivenTokens], n: int) -> None:
    """Raise `RequestError` for more continuations of a prompt than were asked for: their places would be another's."""
    for index, given in enumerate(answers):
        if len(given.choices) > n:
            field = f"generate_responses[{index}].choices"
            raise RequestError(f"{field}: {len(given.choices)}, but completion_request.n={n}", field)


def _check_answerable(asked: CompletionRequest) -> None:
    """Raise `RequestError` for what token ids do not tell."""
    for name in ("echo", "prompt_logprobs", "prompt_embeds"):
        value = getattr(asked, name)
        # No alternatives to each token, 0, are asked for as well.
        if value is not None and value is not False:
            field = f"completion_request.{name}"
            raise RequestError(_NOT_TOLD.format(field), field)


def _check_logprobs(where: str, given: GivenTokens, params: SamplingParams) -> None:
    """Raise `RequestError` where they were asked for, and are not there."""
    if params.logprobs is None:
        return
    for index, choice in enumerate(given.choices):
        if choice.token_ids and (choice.logprobs is None or not choice.logprobs.content):
            field = f"{where}.choices[{index}].logprobs"
            raise RequestError(f"{field}: the request asks for them", field)


def _with_prompt(usage: Usage, prompt_tokens: int) -> Usage:
    """The usage with another number of tokens of the prompt."""
    return msgspec.structs.replace(
        usage, prompt_tokens=prompt_tokens, total_tokens=prompt_tokens + usage.completion_tokens
    )
