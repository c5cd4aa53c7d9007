"""The prompt of a conversation: messages and tools as chat templates read them, and what the templates make of them."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from starlette.requests import Request

from jaxllm.errors import RequestError, quoted
from jaxllm.serving.http.body.base import with_template_fields
from jaxllm.serving.http.state import ServerState
from jaxllm.serving.openai.chat.functions import ROLE, conversation_with_tools
from jaxllm.serving.openai.generation.validation import check_encodable
from jaxllm.serving.openai.protocol.chat import ChatCompletionRequest
from jaxllm.serving.openai.protocol.messages import ContentPart, Message, Tool, ToolCall
from jaxllm.serving.openai.protocol.tokenize import TokenizeRequest
from jaxllm.serving.options.server import ServerOptions
from jaxllm.serving.tenancy.access import owner_of
from jaxllm.serving.text.chat import render_chat
from jaxllm.serving.text.media_parts import FIELDS, URLS, medium_of, placed_media
from jaxllm.serving.text.messages import TEXT_TYPES, is_media, refusal
from jaxllm.serving.text.templates.rendering import apply

Prepared = Mapping[str, Sequence[Any]]
"""The images and sounds of a request as the engine takes them, by their medium, in order."""

_NEED_CONTENT = {"system", "developer", "user", "tool", ROLE}
_WITHOUT_EFFECT = {"annotations", "images", "partial", "prefix", "refusal", "reasoning_content"}


def render(server: ServerState, body: ChatCompletionRequest | TokenizeRequest) -> tuple[list[dict[str, Any]], str]:
    """The messages of a request as templates read them, and the prompt; for threads. Raises `RequestError`.

    The prompt has a marker for each image and sound.
    """
    if body.chat_template is not None and not server.options.trust_request_chat_template:
        raise RequestError(
            "chat_template: templates in requests are disabled, because they are programs; the server allows them "
            "with --trust-request-chat-template",
            "chat_template",
        )
    media = media_of(server)
    messages = conversation(body.messages or (), media=media)
    go_on = bool(body.continue_final_message)
    prompt = render_chat(
        server.tokenizer,
        messages,
        chat_template=body.chat_template or server.llm.chat_template,
        chat_template_content_format=getattr(server.options, "chat_template_content_format", "auto"),
        add_generation_prompt=not go_on if body.add_generation_prompt is None else body.add_generation_prompt,
        continue_final_message=go_on,
        tools=tool_dictionaries(body.tools) if body.tools and _shows_tools(body, server.options) else None,
        chat_template_kwargs=_template_kwargs(body, server.options),
        allow_special_tokens=server.options.allow_special_tokens_in_content,
        media=media,
        written={medium: each for maker in server.media.values() for medium, each in maker.written.items()},
        apply=apply if body.chat_template is None else server.llm.templates.apply,
    )
    return messages, prompt


def _shows_tools(body: ChatCompletionRequest | TokenizeRequest, options: ServerOptions) -> bool:
    is_off = isinstance(body, ChatCompletionRequest) and body.tool_choice == "none"
    return not (is_off and options.exclude_tools_when_tool_choice_none)


async def prepare_media(
    request: Request, server: ServerState, body: ChatCompletionRequest | TokenizeRequest
) -> Prepared:
    """The images and sounds of a conversation, of the media that the model takes. Raises `RequestError`."""
    if not server.media:
        return {}
    placed, owner = placed_media(body.messages or ()), owner_of(request).name
    kwargs = body.mm_processor_kwargs, body.media_io_kwargs
    return {
        name: await maker.prepare([each for each in placed if each.medium in maker.media], owner, *kwargs)
        for name, maker in server.media.items()
    }


def media_of(server: ServerState) -> frozenset[str]:
    """The types of parts that stand for media which the model takes."""
    return frozenset().union(*(maker.media for maker in server.media.values()))


async def count_tokens(request: Request, server: ServerState, body: ChatCompletionRequest) -> int:
    """Tokens of a conversation as the model would read it, however many it can read. Raises `RequestError`."""
    prepared = await prepare_media(request, server, body)

    def count() -> int:
        prompt = render_whole(server, body, prepared)
        return len(server.tokenizer.encode([prompt], add_special_tokens=False)[0])

    return await server.run_text_of(body.chat_template)(count)


def render_whole(server: ServerState, body: ChatCompletionRequest | TokenizeRequest, prepared: Prepared) -> str:
    """The prompt with what stands for its media, if it is not too long to be encoded. Raises `RequestError`."""
    _, prompt = render(server, body)
    for medium, each in prepared.items():
        if each:
            prompt = server.media[medium].write(prompt, each)
    check_encodable(prompt, "messages", server.limits, server.tokenizer.length.longest)
    return prompt


def _template_kwargs(body: ChatCompletionRequest | TokenizeRequest, options: ServerOptions) -> dict[str, Any]:
    given = body.chat_template_kwargs or {}
    kwargs = {**(options.default_chat_template_kwargs or {}), **given}
    if body.enable_thinking is not None and "enable_thinking" not in given:
        kwargs["enable_thinking"] = body.enable_thinking
    if isinstance(body, ChatCompletionRequest):
        if body.documents is not None:
            kwargs["documents"] = body.documents
        if body.reasoning_effort is not None:
            effort = (options.reasoning_effort_map or {}).get(body.reasoning_effort, body.reasoning_effort)
            kwargs.setdefault("reasoning_effort", effort)
        if body.reasoning_effort == "none":
            # Templates know it under one of these names.
            kwargs.setdefault("enable_thinking", False)
            kwargs.setdefault("thinking", False)
    return kwargs


def conversation(messages: Sequence[Message], *, media: Collection[str] = ()) -> list[dict[str, Any]]:
    """The messages as dictionaries that hold only what was given, for `render_chat`.

    Of the `media` that the model takes, there is what stands for each. Raises `RequestError`.
    """
    plain = [_plain(f"messages[{index}]", message, media) for index, message in enumerate(messages)]
    if any(message.function_call is not None or message.role == ROLE for message in messages):
        return conversation_with_tools(plain)
    return plain


def _plain(where: str, message: Message, media: Collection[str]) -> dict[str, Any]:
    if message.content is None and message.role in _NEED_CONTENT:
        raise RequestError(
            f"{where}.content: a message with role {quoted(message.role)} needs content", f"{where}.content"
        )
    plain = with_template_fields(message)
    for name in _WITHOUT_EFFECT:
        plain.pop(name, None)
    if message.reasoning is None and message.reasoning_content is not None:
        plain["reasoning"] = message.reasoning_content
    if "reasoning" in plain:
        # Chat templates know it under either name.
        plain["reasoning_content"] = plain["reasoning"]
    if isinstance(message.content, list):
        parts = enumerate(message.content)
        plain["content"] = [plain_part(f"{where}.content[{index}]", part, media) for index, part in parts]
    if message.content is None and message.refusal is not None:
        plain["content"] = message.refusal
    if message.tool_calls is not None:
        plain["tool_calls"] = [
            _call(f"{where}.tool_calls[{index}].function", call) for index, call in enumerate(message.tool_calls)
        ]
    if message.function_call is not None:
        plain["function_call"] = with_template_fields(message.function_call)
    return plain


def _call(where: str, call: ToolCall) -> dict[str, Any]:
    if call.function is None:
        raise RequestError(f"{where}: this field is required", where)
    return {**with_template_fields(call), "function": with_template_fields(call.function)}


def plain_part(where: str, part: ContentPart, media: Collection[str]) -> dict[str, Any]:
    """A part of the content. Whether the template reads one that is not text is found out with the template."""
    medium = medium_of(part.type)
    if medium in media:
        return {"type": medium}
    for name in FIELDS:
        if getattr(part, name) is not None and (part.type not in URLS or URLS[part.type].field != name):
            raise RequestError(f"{where}.{name}: only parts of type {name} have one", f"{where}.{name}")
    if is_media(part.type):
        raise RequestError(f"{where}.type={quoted(part.type)}: {refusal(media)}", f"{where}.type")
    plain = with_template_fields(part)
    plain.pop("prompt_cache_breakpoint", None)
    plain.pop("uuid", None)
    if part.type in TEXT_TYPES:
        field = "refusal" if part.type == "refusal" else "text"
        if getattr(part, field) is None:
            raise RequestError(f"{where}.{field}: this field is required", f"{where}.{field}")
        plain.pop("refusal", None)
        plain.update(type="text", text=getattr(part, field))
    return plain


def tool_dictionaries(tools: Sequence[Tool] | None) -> list[dict[str, Any]] | None:
    """The tools as dictionaries. Raises `RequestError` for one without a function."""
    plain = []
    for index, tool in enumerate(tools or ()):
        if tool.function is None:
            raise RequestError(f"tools[{index}].function: this field is required", f"tools[{index}].function")
        plain.append({"type": tool.type, "function": with_template_fields(tool.function)})
    return plain or None


def last_content(messages: Sequence[dict[str, Any]], role: str) -> str:
    """Text of the last message, if this role wrote it."""
    last = messages[-1]
    content = last.get("content") if last["role"] == role else None
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content if part["type"] == "text")
    return content or ""
