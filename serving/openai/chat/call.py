"""Chat-like requests, of whichever interface, made ready for the engine."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from jaxllm.errors import PromptTooLongError, RequestError
from jaxllm.sampling_params import SamplingParams
from jaxllm.serving.http.generate import calling, try_grammar
from jaxllm.serving.http.state import ServerState
from jaxllm.serving.openai.chat.plan import plan_reply
from jaxllm.serving.openai.chat.prompt import conversation, last_content, tool_dictionaries
from jaxllm.serving.openai.chat.tools import ToolUse, tool_use
from jaxllm.serving.openai.generation import parameters
from jaxllm.serving.openai.generation.structured import naming_form
from jaxllm.serving.openai.protocol.chat import ChatCompletionRequest
from jaxllm.serving.openai.protocol.tokenize import TokenizeRequest
from jaxllm.serving.reply.parts import ReplyParser
from jaxllm.serving.reply.reasoning_count import ReasoningCount
from jaxllm.serving.text.input_processor import TextRequest

MOST_CONTEXTS = 8
"""Times the model's longest prompt that is encoded where only its tokens are asked for."""


@dataclass(frozen=True, kw_only=True)
class ChatCall:
    """A chat-like request that the engine can run, and how to read what it writes."""

    request: TextRequest
    new_parser: Callable[[], ReplyParser] | None
    """Makes a parser for one answer; None: all text is content, and needs none."""
    count_reasoning: Callable[[], ReasoningCount] | None = None
    """Makes a counter of the reasoning tokens of one answer; None: it is not known how the model reasons."""
    names_function: bool = False
    """Whether the request asks for a call of one function that it names."""
    begin: str = ""
    """Text with which every answer begins, because the request asked for its own beginning back (`echo`)."""


async def prepare_chat(
    request: Request,
    server: ServerState,
    body: ChatCompletionRequest,
    engine_ids: Sequence[str],
    *,
    limit: str | None = None,
) -> ChatCall:
    """Check a chat request, render its prompt, and make a request for the engine of the one id in `engine_ids`.

    Other interfaces write theirs as a `ChatCompletionRequest` and rename the fields of errors (`generate.calling`).
    `limit` is the name by which they know the most tokens to generate. Raises `RequestError`.
    """
    _check(body, server)
    use = tool_use(body)
    limit = limit or ("max_tokens" if body.max_completion_tokens is None else "max_completion_tokens")
    parameters.check_max_tokens(limit, _asked_tokens(body), server.llm.info.max_model_len)
    names = {"prompt": "messages", "max_tokens": limit, "logprobs": "top_logprobs"}
    with calling(**names, beam_width=parameters.width_name(body)), _blaming(use), naming_form(body):
        # All that grows with the body is in the thread that renders.
        params, messages, prompt = await server.llm.run_text(
            lambda: (_params(body, server.llm.default_params), *_rendered(server, body))
        )
        plan = plan_reply(server.replies, server.tokenizer, body, use, prompt, params)
        await try_grammar(request, server, plan.params)
        requests = await server.llm.prepare(
            [{"prompt": plan.prompt, "cache_salt": body.cache_salt}],
            plan.params,
            engine_ids,
            priority=parameters.checked_priority(body, server.llm.config),
            stream=bool(body.stream),
            add_special_tokens=bool(body.add_special_tokens),
        )
    requests[0].kept_tokens = plan.kept_tokens
    begin = last_content(messages, server.options.response_role) if body.echo else ""
    return ChatCall(
        request=requests[0],
        new_parser=plan.new_parser,
        count_reasoning=plan.count_reasoning,
        names_function=use.named,
        begin=begin,
    )


@contextmanager
def _blaming(use: ToolUse) -> Iterator[None]:
    """Blame tools for errors in a grammar that was made of them."""
    try:
        yield
    except RequestError as error:
        if not use.constrains or error.parameter != "grammar":
            raise
        reason = str(error).partition(" | ")[0].partition("): ")[2] or str(error)
        raise RequestError(f"tools: their parameters cannot be enforced: {reason}", "tools") from None


async def count_tokens(server: ServerState, body: ChatCompletionRequest) -> int:
    """Tokens of a conversation as the model would read it, however many it can read. Raises `RequestError`."""

    def count() -> int:
        text = render(server, body)
        check_encodable(server, text, "messages")
        return len(server.tokenizer.encode([text], add_special_tokens=False)[0])

    return await server.llm.run_text(count)


def render(server: ServerState, body: ChatCompletionRequest | TokenizeRequest) -> str:
    """The prompt that the chat template makes of the messages of a request; for threads. Raises `RequestError`."""
    return _rendered(server, body)[1]


def _rendered(server: ServerState, body: ChatCompletionRequest | TokenizeRequest) -> tuple[list[dict[str, Any]], str]:
    """The messages as templates read them, and the prompt."""
    messages = conversation(body.messages or (), server.chat_template(body.chat_template))
    return messages, server.llm.render(messages, **template_settings(body, server))


def check_encodable(server: ServerState, text: str, field: str) -> None:
    """Raise `RequestError` for a text that nobody needs the tokens of: it is many times as long as the model reads."""
    most = MOST_CONTEXTS * server.llm.info.max_model_len
    longest = server.tokenizer.length.longest
    if longest is not None and len(text) > most * longest:
        raise PromptTooLongError(
            f"{field}: {len(text)} characters; at most {most * longest} are encoded, {MOST_CONTEXTS} times as many as "
            "the model's longest prompt can have",
            field,
        )


def template_settings(body: ChatCompletionRequest | TokenizeRequest, server: ServerState) -> dict[str, Any]:
    """Arguments for rendering the conversation of a request. Raises `RequestError`."""
    server.check_template(body.chat_template)
    go_on = bool(body.continue_final_message)
    return {
        "chat_template": body.chat_template,
        "add_generation_prompt": not go_on if body.add_generation_prompt is None else body.add_generation_prompt,
        "continue_final_message": go_on,
        "tools": tool_dictionaries(body.tools),
        "chat_template_kwargs": _template_kwargs(body, server.options.default_chat_template_kwargs or {}),
        "allow_special_tokens": server.options.allow_special_tokens_in_content,
    }


def _template_kwargs(body: ChatCompletionRequest | TokenizeRequest, defaults: Mapping[str, Any]) -> dict[str, Any]:
    given = body.chat_template_kwargs or {}
    for name in ("chat_template", "tokenize", "tools", "conversation"):
        if name in given:
            raise RequestError(f"chat_template_kwargs.{name}: not an argument of templates", "chat_template_kwargs")
    kwargs = {**defaults, **given}
    if body.enable_thinking is not None and "enable_thinking" not in given:
        kwargs["enable_thinking"] = body.enable_thinking
    if isinstance(body, ChatCompletionRequest):
        if body.documents is not None:
            kwargs["documents"] = body.documents
        if body.reasoning_effort is not None:
            kwargs.setdefault("reasoning_effort", body.reasoning_effort)
        if body.reasoning_effort == "none":
            # Templates know it under one of these names.
            kwargs.setdefault("enable_thinking", False)
            kwargs.setdefault("thinking", False)
    return kwargs


def _check(body: ChatCompletionRequest, server: ServerState) -> None:
    """Raise `RequestError` for fields that do not go together, or are too large."""
    parameters.check_stream(body)
    parameters.check_sequences(body, 1, server.most_sequences)
    parameters.check_alternatives("top_logprobs", body.top_logprobs, server.llm.info)
    parameters.check_alternatives("prompt_logprobs", body.prompt_logprobs, server.llm.info)
    if body.top_logprobs and not body.logprobs:
        raise RequestError("top_logprobs needs logprobs=true", "top_logprobs")
    if body.logprob_token_ids is not None and not body.logprobs:
        raise RequestError("logprob_token_ids needs logprobs=true", "logprob_token_ids")


def _asked_tokens(body: ChatCompletionRequest) -> int | None:
    return body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens


def _params(body: ChatCompletionRequest, defaults: SamplingParams) -> SamplingParams:
    max_tokens = _asked_tokens(body)
    return parameters.sampling_params(
        body,
        defaults,
        max_tokens=parameters.recommended_max_tokens(defaults) if max_tokens is None else max_tokens,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
    )
