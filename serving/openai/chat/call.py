"""Chat-like requests of any interface, made ready for the engine in stages: check, plan, build."""

from collections.abc import Sequence
from functools import partial

from starlette.requests import Request

from jaxllm.errors import RequestError
from jaxllm.serving.http.limits import AdmissionLimits
from jaxllm.serving.http.state import ServerState
from jaxllm.serving.http.submission import try_grammar
from jaxllm.serving.openai.chat.functions import naming_functions, with_tools
from jaxllm.serving.openai.chat.plan import ChatCall, build_request, plan_and_build
from jaxllm.serving.openai.chat.prompt import prepare_media
from jaxllm.serving.openai.chat.tools import NO_TOOLS, ToolUse, tool_use
from jaxllm.serving.openai.generation.parameters import naming_form
from jaxllm.serving.openai.generation.validation import check_generation, check_max_tokens, checked_priority
from jaxllm.serving.openai.protocol.chat import ChatCompletionRequest


async def prepare_chat(
    request: Request,
    server: ServerState,
    body: ChatCompletionRequest,
    engine_ids: Sequence[str],
    *,
    limit: str | None = None,
) -> ChatCall:
    """Check a chat request, render its prompt, and make a request for the engine of the one id in `engine_ids`.

    Other interfaces write theirs as a `ChatCompletionRequest` and rename the fields of errors (`http.renaming`).
    `limit` is the name by which they know the most tokens to generate. Raises `RequestError`.
    """
    if body.functions is not None or body.function_call is not None:
        plain = with_tools(body)
        with naming_functions():
            return await prepare_chat(request, server, plain, engine_ids, limit=limit)
    older = body.max_completion_tokens is None
    limit = limit or ("max_tokens" if older else "max_completion_tokens")
    asked = body.max_tokens if older else body.max_completion_tokens
    use = tool_use(body) if body.tools or body.tool_choice else NO_TOOLS
    try:
        priority = _check(body, server.limits, limit, asked)
        prepared = await prepare_media(request, server, body)
        build = partial(build_request, server.llm.inputs, body, engine_ids, priority, prepared)
        plan, made = await server.run_text_of(body.chat_template)(plan_and_build, server, body, use, asked, build)
        if made is None:
            await try_grammar(request, server, plan.params)
            made = await server.llm.run_text(build, plan)
    except RequestError as error:
        raise _named(error, body, use, limit) from None
    return ChatCall(made, plan)


def _check(body: ChatCompletionRequest, limits: AdmissionLimits, limit: str, asked: int | None) -> int:
    """The priority. Raises `RequestError` for fields that cannot be combined, or are too large."""
    check_generation(body, limits, top_logprobs=body.top_logprobs)
    if body.top_logprobs and not body.logprobs:
        raise RequestError("top_logprobs needs logprobs=true", "top_logprobs")
    if body.logprob_token_ids is not None and not body.logprobs:
        raise RequestError("logprob_token_ids needs logprobs=true", "logprob_token_ids")
    check_max_tokens(limit, asked, limits)
    return checked_priority(body.priority, limits)


def _named(error: RequestError, body: ChatCompletionRequest, use: ToolUse, limit: str) -> RequestError:
    """The error with the field's name in the request; tools are blamed for a grammar that was made of them."""
    error = naming_form(error, body)
    if use.constrains and error.parameter == "grammar":
        reason = str(error).partition(" | ")[0].partition("): ")[2] or str(error)
        error = RequestError(f"tools: their parameters cannot be enforced: {reason}", "tools")
    names = {"prompt": "messages", "max_tokens": limit, "logprobs": "top_logprobs"}
    error.parameter = names.get(error.parameter or "", error.parameter)
    return error
