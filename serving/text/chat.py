"""Messages to prompt text, through the tokenizer's chat template."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxllm.errors import ConfigError, QueueFullError, RequestError, nearest
from jaxllm.serving.options.named_templates import NAMED_TEMPLATES, named_template
from jaxllm.serving.text.control_tokens import Disguise
from jaxllm.serving.text.templates import rendering as templates
from jaxllm.serving.text.tokenizer import Tokenizer

Message = Mapping[str, Any]
Conversation = Sequence[Message]


def render_chat(
    tokenizer: Tokenizer,
    messages: Conversation,
    *,
    chat_template: str | None = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    tools: Sequence[Mapping[str, Any]] | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    allow_special_tokens: bool = False,
    apply: Callable[[str, templates.Conversation], str] = templates.apply,
) -> str:
    """The prompt text of a conversation; encode it without adding special tokens, the template writes them.

    `messages` are OpenAI's: role, content (text or a list of text parts), tool calls. `chat_template` (Jinja text)
    takes the place of the tokenizer's own. Where messages, tools or documents have the text of a special token, the
    result is a `ChatPrompt`, of which `Tokenizer.encode` encodes it as text; with `allow_special_tokens` it is the
    token. `apply` renders; a `TemplateSandbox` does so for templates that nobody has looked at. Raises `RequestError`
    for messages or a template that do not work.
    """
    if add_generation_prompt and continue_final_message:
        raise RequestError(
            "continue_final_message=True needs add_generation_prompt=False: the final message is not finished",
            "continue_final_message",
        )
    if chat_template is None and not tokenizer.hf.chat_template:
        raise RequestError(
            "this model's tokenizer has no chat template: give one with chat_template=... (--chat-template): "
            f"a file, Jinja text, or one of {', '.join(NAMED_TEMPLATES)}; or use generate() (/v1/completions) with "
            "plain text",
            "chat_template",
        )
    plain = normalise_messages(messages)
    listed = None if not tools else [_tool(index, tool) for index, tool in enumerate(tools)]
    kwargs = dict(chat_template_kwargs or {})
    disguise = None
    if not allow_special_tokens and tokenizer.control.concerns([plain, listed, kwargs.get("documents")]):
        disguise = Disguise(tokenizer.control, _template_text(tokenizer, chat_template))
        plain, listed = disguise.hide_in_messages(plain), disguise.hide(listed)
        if "documents" in kwargs:
            kwargs["documents"] = disguise.hide(kwargs["documents"])
    try:
        conversation = templates.Conversation(
            messages=plain,
            tools=listed,
            add_generation_prompt=add_generation_prompt,
            continues=continue_final_message,
            variables={**tokenizer.hf.special_tokens_map, **kwargs},
        )
        text = apply(templates.chosen(tokenizer.hf.chat_template, chat_template, listed), conversation)
    except QueueFullError:
        raise
    # A template is a program of somebody else's: it raises what it likes.
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        reason = reason if disguise is None else disguise.reveal(reason)
        raise RequestError(f"the chat template refuses these messages: {reason[:500]}", "messages") from error
    assert isinstance(text, str)
    return text if disguise is None else disguise.prompt(text)


def _template_text(tokenizer: Tokenizer, given: str | None) -> str:
    """The template that will be used, or all of several."""
    template = given or tokenizer.hf.chat_template
    return template if isinstance(template, str) else "\n".join(template.values())


def normalise_messages(messages: Conversation) -> list[dict[str, Any]]:
    """Messages as chat templates expect them: content as text, the arguments of tool calls as objects.

    The given messages are not changed. Raises `RequestError` that names the message.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise RequestError(f"messages: expected a list of messages, got {type(messages).__name__}", "messages")
    if not messages:
        raise RequestError("messages: the list is empty", "messages")
    return [_normalise(f"messages[{index}]", message) for index, message in enumerate(messages)]


def _normalise(where: str, message: Any) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise RequestError(
            f"{where}: expected an object with role and content, got {type(message).__name__}", "messages"
        )
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise RequestError(
            f"{where}: role={role!r} must be a string such as 'system', 'user' or 'assistant'", "messages"
        )
    plain = dict(message)
    plain["content"] = _text_of(where, message.get("content"))
    calls = message.get("tool_calls")
    if calls:
        plain["tool_calls"] = [_tool_call(f"{where}.tool_calls[{index}]", call) for index, call in enumerate(calls)]
    return plain


def _text_of(where: str, content: Any) -> str:
    """Content as one text: parts are joined by newlines, as vLLM does."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping) or not isinstance(content, Sequence):
        raise RequestError(
            f"{where}: content must be text or a list of parts, got {type(content).__name__}", "messages"
        )
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        text = part if isinstance(part, str) else part.get("text") if isinstance(part, Mapping) else None
        if not isinstance(text, str) or kind not in ("str", "text", "input_text", "output_text"):
            raise RequestError(f"{where}: content[{index}] is of type {kind!r}; this model reads text only", "messages")
        texts.append(text)
    return "\n".join(texts)


def _tool_call(where: str, call: Any) -> dict[str, Any]:
    """A tool call whose arguments, JSON text in OpenAI's form, are an object."""
    if not isinstance(call, Mapping) or not isinstance(call.get("function"), Mapping):
        raise RequestError(f"{where}: expected an object with a function", "messages")
    function = dict(call["function"])
    if isinstance(function.get("arguments"), str):
        try:
            function["arguments"] = json.loads(function["arguments"] or "{}")
        except ValueError as error:
            raise RequestError(f"{where}: arguments are not valid JSON: {error}", "messages") from None
    return {**call, "function": function}


def _tool(index: int, tool: Any) -> dict[str, Any]:
    if not isinstance(tool, Mapping):
        raise RequestError(f"tools[{index}]: expected an object, got {type(tool).__name__}", "tools")
    return dict(tool)


def load_chat_template(name: str) -> str:
    """A chat template given by a name of `NAMED_TEMPLATES`, by a file, or as Jinja text.

    A file with such a name is given as `./name`. Raises `ConfigError` when it is none of these.
    """
    if "{" in name or "\n" in name:
        return name
    named = named_template(name)
    if named is not None:
        return named
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"chat template {name!r} is neither Jinja text nor a readable file ({error}), nor one of "
            f"{', '.join(NAMED_TEMPLATES)}{nearest(name, NAMED_TEMPLATES)}"
        ) from None
