"""Scores of labels by a model that generates: the probabilities of tokens that may come next."""

import math
from collections.abc import Sequence
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from jaxllm.errors import RequestError
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.serving.http.identity import Identity, identify
from jaxllm.serving.http.state import ServerState, server_of
from jaxllm.serving.http.submission import respond_whole
from jaxllm.serving.openai.generation.events import UsageCounter
from jaxllm.serving.openai.generation.validation import check_encodable, check_texts, checked_priority
from jaxllm.serving.openai.protocol.label_scores import LabelScore, LabelScores, LabelScoresRequest
from jaxllm.serving.text.input_processor import InputProcessor, TextRequest
from jaxllm.serving.text.outputs import RequestOutput
from jaxllm.serving.text.prompts import ParsedPrompt


async def score_labels(request: Request) -> Response:
    """Tell how likely the first of some tokens comes next, after a query and each of several items.

    This is vLLM's /generative_scoring. Prompts that are too long are rejected, where vLLM cuts them.
    """
    server = server_of(request)
    server.check_accepting()
    body = await server.bodies.read(request, LabelScoresRequest)
    priority = _check(server, body)
    identity = identify(request, server, body, "generative-scoring", len(body.items))
    requests = await server.llm.run_text(_build, server, body, identity.engine_ids, priority)
    return await respond_whole(request, server, requests, partial(_answer, body, identity, requests))


def _check(server: ServerState, body: LabelScoresRequest) -> int:
    """The priority. Raises `RequestError`."""
    if not body.items:
        raise RequestError("items: the list is empty", "items")
    if not body.label_token_ids:
        raise RequestError("label_token_ids: the list is empty", "label_token_ids")
    if len({type(item) for item in body.items}) > 1:
        raise RequestError("items: strings and token IDs cannot be mixed in one list", "items")
    if body.cache_salt == "":
        raise RequestError("cache_salt='': must be a non-empty string", "cache_salt")
    mode = server.llm.info.logprobs_mode
    if body.apply_softmax is False and not mode.endswith("logprobs"):
        raise RequestError(
            f"apply_softmax=false: with --logprobs-mode {mode} there are no probabilities", "apply_softmax"
        )
    check_texts("items", len(body.items), server.limits)
    return checked_priority(body.priority, server.limits)


def _build(
    server: ServerState, body: LabelScoresRequest, engine_ids: Sequence[str], priority: int
) -> list[TextRequest]:
    """A request for each item; for threads. Raises `RequestError`."""
    inputs = server.llm.inputs
    assert isinstance(inputs, InputProcessor)
    (query,) = _token_ids(server, "query", [body.query], special=body.add_special_tokens is not False)
    # The text as a whole begins with the special tokens, once.
    items = _token_ids(server, "items", body.items, special=False)
    prompts = [item + query if body.item_first else query + item for item in items]
    count = len(prompts)
    try:
        params = SamplingParams(
            max_tokens=1, temperature=0.0, logprobs=0, logprob_token_ids=body.label_token_ids, detokenize=False
        )
        return inputs.build(
            [ParsedPrompt(None, prompt, body.cache_salt) for prompt in prompts],
            [params] * count,
            engine_ids,
            [priority] * count,
            stream=False,
            add_special_tokens=False,
        )
    except RequestError as error:
        names = {"logprob_token_ids": "label_token_ids", "prompt": "items"}
        error.parameter = names.get(error.parameter or "", error.parameter)
        raise


def _token_ids(server: ServerState, field: str, given: Sequence[str | list[int]], *, special: bool) -> list[list[int]]:
    """The token IDs of strings or token IDs, all of one kind. Raises `RequestError`."""
    texts = [each for each in given if isinstance(each, str)]
    if not texts:
        return [each for each in given if isinstance(each, list)]
    for text in texts:
        check_encodable(text, field, server.limits, server.tokenizer.length.longest)
    return server.tokenizer.encode(texts, add_special_tokens=special)


def _answer(
    body: LabelScoresRequest,
    identity: Identity,
    requests: Sequence[TextRequest],
    outputs: Sequence[RequestOutput],
) -> LabelScores:
    """The scores of all items."""
    counter = UsageCounter([len(request.prompt_token_ids) for request in requests])
    for index, output in enumerate(outputs):
        counter.add(index, output)
    return LabelScores(
        id=identity.id,
        created=identity.created,
        model=identity.model,
        data=[LabelScore(index=index, score=_score(body, output)) for index, output in enumerate(outputs)],
        usage=counter.usage,
    )


def _score(body: LabelScoresRequest, output: RequestOutput) -> float:
    """The probability of the first label, among all or among the labels."""
    (completion,) = output.outputs
    assert completion.logprobs is not None
    (choices,) = completion.logprobs
    logprobs = [choices[label].logprob for label in dict.fromkeys(body.label_token_ids)]
    if body.apply_softmax is False:
        return math.exp(logprobs[0])
    most = max(logprobs)
    if most == -math.inf:
        return 1 / len(logprobs)
    return math.exp(logprobs[0] - most) / math.fsum(math.exp(each - most) for each in logprobs)
