"""The plan of a chat request: its prompt, its sampling, and how answers are read for tools and reasoning."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from jaxllm.errors import RequestError
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.requests.structured_outputs import StructuredOutputsParams
from jaxllm.serving.http.state import ServerState
from jaxllm.serving.openai.chat.prompt import Prepared, last_content, render
from jaxllm.serving.openai.chat.tools import ToolUse
from jaxllm.serving.openai.generation.parameters import recommended_max_tokens, sampling_params
from jaxllm.serving.openai.protocol.chat import ChatCompletionRequest
from jaxllm.serving.pooling.inputs import PoolingInputs
from jaxllm.serving.reply.catalogue import TOOL_FORMATS
from jaxllm.serving.reply.compose import calls_grammar, make_parser, preserved_tokens
from jaxllm.serving.reply.formats.base import ReasoningFormat, ToolFormat
from jaxllm.serving.reply.parts import ReplyParser
from jaxllm.serving.reply.reasoning_count import ReasoningCount
from jaxllm.serving.reply.registry import ReplyFormats
from jaxllm.serving.text.input_processor import InputProcessor, TextRequest
from jaxllm.serving.text.messages import AUDIO, IMAGE
from jaxllm.serving.text.prompts import ParsedPrompt
from jaxllm.serving.text.tokenizer import Tokenizer

_ANY = {"additionalProperties": True}


@dataclass(frozen=True, kw_only=True)
class ReplyPlan:
    """The prompt and the parameters of a request, and how to read its answers."""

    prompt: str
    params: SamplingParams
    new_parser: Callable[[], ReplyParser] | None = None
    """Makes a parser for one answer; None: all text is content, and needs none."""
    count_reasoning: Callable[[], ReasoningCount] | None = None
    """Makes a counter of the reasoning tokens of one answer; None: it is not known how the model reasons."""
    preserved_tokens: frozenset[int] = frozenset()
    """Special tokens that the parser must see in the text."""
    names_function: bool = False
    """Whether the request asks for a call of one function that it names."""
    begin: str = ""
    """Text with which every answer begins, because the request asked for its own beginning back (`echo`)."""


Build = Callable[[ReplyPlan], TextRequest]


@dataclass(frozen=True)
class ChatCall:
    """A chat-like request that the engine can run, and how to read what it writes."""

    request: TextRequest
    plan: ReplyPlan


def plan_and_build(
    server: ServerState, body: ChatCompletionRequest, use: ToolUse, max_tokens: int | None, build: Build
) -> tuple[ReplyPlan, TextRequest | None]:
    """The plan of a request, and the engine's request unless it has a grammar, which is to be tried before.

    `max_tokens` are asked for, under whichever name. All that takes long where the body is large is here, for threads.
    Raises `RequestError`.
    """
    plan = _plan(server, body, use, max_tokens)
    return plan, None if plan.params.structured_outputs is not None else build(plan)


def build_request(
    inputs: InputProcessor | PoolingInputs,
    body: ChatCompletionRequest,
    engine_ids: Sequence[str],
    priority: int,
    prepared: Prepared,
    plan: ReplyPlan,
) -> TextRequest:
    """The request for the engine of the one id in `engine_ids`. Raises `RequestError`."""
    assert isinstance(inputs, InputProcessor)
    side = body.truncation_side or "left"
    prompt = ParsedPrompt(plan.prompt, None, body.cache_salt, truncation_side=side)
    prompt.images, prompt.sound = prepared.get(IMAGE, ()), prepared.get(AUDIO, ())
    (made,) = inputs.build(
        [prompt],
        [plan.params],
        engine_ids,
        [priority],
        stream=bool(body.stream),
        add_special_tokens=bool(body.add_special_tokens),
    )
    made.preserved_tokens = plan.preserved_tokens
    return made


def _plan(server: ServerState, body: ChatCompletionRequest, use: ToolUse, max_tokens: int | None) -> ReplyPlan:
    defaults = server.llm.default_params
    params = sampling_params(
        body,
        defaults,
        max_tokens=recommended_max_tokens(defaults) if max_tokens is None else max_tokens,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
    )
    messages, prompt = render(server, body)
    plan = plan_reply(server.replies, server.tokenizer, body, use, prompt, params)
    if not body.echo:
        return plan
    return replace(plan, begin=last_content(messages, server.options.response_role))


def plan_reply(
    formats: ReplyFormats,
    tokenizer: Tokenizer,
    body: ChatCompletionRequest,
    use: ToolUse,
    prompt: str,
    params: SamplingParams,
) -> ReplyPlan:
    """Make the plan for a request that was rendered as `prompt`. Raises `RequestError`."""
    tools = _tool_format(formats) if use.allowed else None
    reasoning = formats.reasoning
    if params.thinking_token_budget is not None and reasoning is None:
        raise RequestError(
            "thinking_token_budget: the reasoning format of this model is unknown; start the server with "
            "--reasoning-parser",
            "thinking_token_budget",
        )
    if tools is None and reasoning is None:
        return ReplyPlan(prompt=prompt, params=params, names_function=use.named)
    forced = use.forced and tools is not None and tools.forces_reasoning
    limits = params.thinking_token_budget is not None
    begun = False if reasoning is None else reasoning.begins_inside(prompt)
    if reasoning is not None and begun is None:
        form = params.structured_outputs is not None and not use.constrains
        if limits or (form and (formats.explicit or _asks_to_think(body))):
            # The engine must know that there is reasoning; so it is not left to the model.
            # A `ChatPrompt` stays one.
            prompt, begun = prompt + f"{reasoning.start}\n", True
    if tools is not None:
        params = _with_grammar(params, tools, reasoning if begun is None else None, tokenizer.token_ids, use)
    waits = limits or (params.structured_outputs is not None and not forced)
    if reasoning is not None and begun and waits:
        params = msgspec.structs.replace(
            params,
            reasoning_end_token_ids=_encode(tokenizer, reasoning.end),
            reasoning_closing_token_ids=_encode(tokenizer, formats.closing) if formats.closing else None,
        )
    inside = bool(begun)
    return ReplyPlan(
        prompt=prompt,
        params=params,
        new_parser=_parser_factory(tools, reasoning, body, use, inside=inside),
        count_reasoning=None if reasoning is None else _count_factory(tokenizer, reasoning, tools, inside=inside),
        preserved_tokens=preserved_tokens(tokenizer.token_ids, tools, reasoning) & tokenizer.special_ids,
        names_function=use.named,
    )


def _tool_format(formats: ReplyFormats) -> ToolFormat:
    if formats.tools is None:
        raise RequestError(
            "tools: the tool-call format of this model is unknown: start the server with --tool-call-parser and one "
            f"of {', '.join(TOOL_FORMATS)}; with tool_choice='none', the model sees the tools but answers in text",
            "tools",
        )
    return formats.tools


def _with_grammar(
    params: SamplingParams,
    tools: ToolFormat,
    reasoning: ReasoningFormat | None,
    token_ids: dict[str, int],
    use: ToolUse,
) -> SamplingParams:
    """Parameters with the grammar of answers that must call, whose calls must be valid, or which are JSON or calls."""
    form = None if use.forced else params.structured_outputs
    instead = None if form is None else _json_schema(form)
    if not use.constrains and instead is None:
        return params
    functions = {
        # A function that is not strict is free in calls that need not come.
        name: (function.parameters if use.forced or function.strict else _ANY, bool(function.strict))
        for name, function in use.functions.items()
    }
    grammar = calls_grammar(
        tools, token_ids, functions, several=use.several, optional=not use.forced, reasoning=reasoning, instead=instead
    )
    if grammar is None:
        return params
    try:
        return msgspec.structs.replace(params, structured_outputs=StructuredOutputsParams(grammar=grammar))
    except RequestError as error:
        raise RequestError(f"tools: cannot compile their schemas to a grammar: {error}", "tools") from None


def _json_schema(form: StructuredOutputsParams) -> dict[str, Any] | None:
    """The schema of the JSON that an answer in words has to be; None: it has another form."""
    if form.json_object:
        return {"type": "object"}
    schema = msgspec.json.decode(form.json) if isinstance(form.json, str) else form.json
    return {} if schema is True else schema or None


def _asks_to_think(body: ChatCompletionRequest) -> bool:
    given = body.chat_template_kwargs or {}
    return bool(given.get("enable_thinking") or given.get("thinking"))


def _parser_factory(
    tools: ToolFormat | None,
    reasoning: ReasoningFormat | None,
    body: ChatCompletionRequest,
    use: ToolUse,
    *,
    inside: bool,
) -> Callable[[], ReplyParser]:
    schemas = {name: function.parameters or {} for name, function in use.functions.items()}
    return lambda: make_parser(
        tools,
        reasoning,
        schemas=schemas,
        inside=inside,
        most_calls=None if use.several else 1,
        include_reasoning=body.include_reasoning is not False,
        include_content=not (use.forced and tools is not None),
    )


def _count_factory(
    tokenizer: Tokenizer, reasoning: ReasoningFormat, tools: ToolFormat | None, *, inside: bool
) -> Callable[[], ReasoningCount]:
    begins, ends = ([tuple(_encode(tokenizer, text)) for text in texts] for texts in reasoning.sections)
    # A call ends reasoning. Where its tag is no token, it may be words about one.
    calls = [tuple(_encode(tokenizer, tag)) for tag in getattr(tools, "begins", ())]
    ends += [tag for tag in calls if len(tag) == 1 and tag not in (*begins, *ends)]
    # Formats whose reasoning is one of several messages begin it with a mark of its own.
    return lambda: ReasoningCount(begins, ends, inside=inside and bool(reasoning.start))


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode([text], add_special_tokens=False)[0]
