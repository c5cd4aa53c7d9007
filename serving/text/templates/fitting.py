"""Messages and tools as a chat template takes them, so that no text vanishes and nothing is rejected without need."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from jaxllm.errors import RequestError, quoted
from jaxllm.serving.text.messages import MEDIA
from jaxllm.serving.text.templates.chat_template import ChatTemplate
from jaxllm.serving.text.templates.trials import INSTRUCTIONS, Form

CONTENT_FORMATS = ("auto", "string", "openai")
"""How contents are given to templates: as sent where the template takes that, always as text, always as parts."""
_DEVELOPER, _SYSTEM = "developer", "system"
_BETWEEN = "\n\n"
_FORMS = {"string": Form.TEXT, "openai": Form.PARTS}


def fit_messages(
    messages: list[dict[str, Any]],
    template: ChatTemplate,
    content_format: str,
    *,
    tools: bool,
    word_of: Callable[[str], str | None] = lambda medium: None,
) -> list[dict[str, Any]]:
    """Messages of `normalise_messages` in the roles and forms that `template` takes, which are not changed.

    `tools`: whether it gets tools. `word_of` gives a word for a part of a medium that it does not read, which then
    comes before the text. Raises `RequestError` for other parts that it does not read.
    """
    fitted = []
    as_texts: set[tuple[str, bool]] = set()
    for index, message in enumerate(_with_known_roles(messages, template)):
        content, kind = message["content"], (message["role"], "tool_calls" in message)
        # Nearly all are of a kind that was seen before.
        if kind in as_texts and isinstance(content, str):
            fitted.append(message)
            continue
        worded = _with_words(message, template, word_of)
        fitted.append(_with_content(f"messages[{index}]", worded, template, content_format, tools=tools))
        if fitted[-1] is message:
            as_texts.add(kind)
    return _with_instructions_first(template.trials.with_calls(fitted), template, content_format, tools=tools)


def _with_words(
    message: dict[str, Any], template: ChatTemplate, word_of: Callable[[str], str | None]
) -> dict[str, Any]:
    """The message with words in place of media that the template does not read, before all else."""
    content = message["content"]
    if isinstance(content, str):
        return message
    words, others = [], []
    for part in content:
        kind = part["type"]
        is_unread = kind in MEDIA and not _reads(template, message["role"], kind)
        word = word_of(kind) if is_unread else None
        if word is None:
            others.append(part)
        else:
            words.append({"type": "text", "text": word})
    return {**message, "content": [*words, *others]} if words else message


def _with_known_roles(messages: list[dict[str, Any]], template: ChatTemplate) -> list[dict[str, Any]]:
    """OpenAI's newer models call the system a developer; most templates do not."""
    if not any(message["role"] == _DEVELOPER for message in messages) or template.trials.knows_developer:
        return messages
    return [{**each, "role": _SYSTEM} if each["role"] == _DEVELOPER else each for each in messages]


def _with_instructions_first(
    messages: list[dict[str, Any]], template: ChatTemplate, content_format: str, *, tools: bool
) -> list[dict[str, Any]]:
    """Messages with all instructions in one at the beginning, where the template would lose or refuse others."""
    places = [index for index, message in enumerate(messages) if message["role"] in INSTRUCTIONS]
    if places in ([], [0]) or _takes_instructions(messages, places, template, tools=tools):
        return messages
    roles = [_SYSTEM, _DEVELOPER] if template.trials.knows_developer else [_SYSTEM]
    role = next((role for role in roles if template.trials.takes([role, "user"], tools=tools)), None)
    if role is None:
        return messages
    joiner = template.trials.joiner(role) if any(isinstance(messages[each]["content"], list) for each in places) else ""
    texts = [_text_of(messages[place]["content"], joiner) for place in places]
    form = _form_of(role, Form.TEXT, template, content_format, tools=tools)
    content = _converted(_BETWEEN.join(filter(None, texts)), form)
    first = {**messages[places[0]], "role": role, "content": content}
    return [first, *(message for message in messages if message["role"] not in INSTRUCTIONS)]


def _takes_instructions(
    messages: list[dict[str, Any]], places: list[int], template: ChatTemplate, *, tools: bool
) -> bool:
    """Whether the template takes instructions at these places."""
    roles = [messages[place]["role"] for place in places]
    num_first = next((index for index, place in enumerate(places) if index != place), len(places))
    first = roles[: min(num_first, 1)]
    if not all(template.trials.takes([*pair, "user"], tools=tools) for pair in _pairs(roles[:num_first])):
        return False
    for role, place in zip(roles[num_first:], places[num_first:], strict=True):
        is_last = place == len(messages) - 1
        later = ["user", role] if is_last else ["user", "assistant", role, "user"]
        if not template.trials.takes([*first, *later], tools=tools):
            return False
    return True


def _pairs(roles: Sequence[str]) -> list[list[str]]:
    """All neighbours, each pair once."""
    return [list(pair) for pair in dict.fromkeys(pairwise(roles))]


def _with_content(
    where: str, message: dict[str, Any], template: ChatTemplate, content_format: str, *, tools: bool
) -> dict[str, Any]:
    content, role, calls = message["content"], message["role"], bool(message.get("tool_calls"))
    if isinstance(content, str):
        form = _form_of(role, Form.TEXT, template, content_format, calls=calls, tools=tools)
        return message if form is Form.TEXT else {**message, "content": _converted(content, form)}
    sent = Form.ONE_PART if len(content) == 1 else Form.PARTS
    form = _form_of(role, sent, template, content_format, calls=calls, tools=tools)
    parts, thoughts = _known_parts(where, role, content, template, form)
    if any(part["type"] != "text" for part in parts):
        return {**message, "content": parts}
    message = {**message, "content": _converted(parts, form)}
    if thoughts and message.get("reasoning") is None and message.get("reasoning_content") is None:
        message["reasoning"] = message["reasoning_content"] = "\n".join(thoughts)
    return message


def _form_of(
    role: str, sent: Form, template: ChatTemplate, content_format: str, *, calls: bool = False, tools: bool = False
) -> Form:
    if content_format == "auto":
        return template.trials.form(role, sent, calls=calls, tools=tools)
    return _FORMS[content_format]


def _known_parts(
    where: str, role: str, parts: list[dict[str, Any]], template: ChatTemplate, form: Form
) -> tuple[list[dict[str, Any]], list[str]]:
    """The parts that the template reads, and thoughts in parts that it does not."""
    known, thoughts = [], []
    for index, part in enumerate(parts):
        kind = part["type"]
        if kind == "text" or (form is not Form.TEXT and _reads(template, role, kind)):
            known.append(part)
        elif kind in ("thinking", "reasoning"):
            thoughts.append(_thought(part))
        else:
            place = f"{where}.content[{index}].type"
            reason = "the chat template has no place for it" if kind in MEDIA else "this model accepts text only"
            raise RequestError(f"{place}={quoted(kind)}: {reason}", place)
    return known, list(filter(None, thoughts))


def _reads(template: ChatTemplate, role: str, kind: str) -> bool:
    return kind in template.source.values or template.trials.reads_part(role, kind)


def _thought(part: Mapping[str, Any]) -> str:
    """The text of a part with reasoning: Mistral's is a text, or a list of parts."""
    value = next((part[name] for name in ("thinking", "reasoning", "text") if name in part), "")
    return value if isinstance(value, str) else _text_of(value, "") if isinstance(value, list) else ""


def _converted(content: Any, form: Form) -> Any:
    """A content of text alone in another form."""
    if form is Form.TEXT:
        return content if isinstance(content, str) else _text_of(content, "\n")
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content or form is Form.ONE_PART else []
    if form is Form.ONE_PART and len(content) != 1:
        fields = {name: value for part in content for name, value in part.items()}
        return [{**fields, "type": "text", "text": _text_of(content, "\n")}]
    return content


def _text_of(content: Any, joiner: str) -> str:
    if isinstance(content, str):
        return content
    texts = (part.get("text") if isinstance(part, Mapping) else part for part in content)
    return joiner.join(text for text in texts if isinstance(text, str))


def fit_tools(tools: Sequence[Any], template: ChatTemplate) -> list[dict[str, Any]]:
    """Tools with what the template cannot do without. Raises `RequestError` for what is no tool."""
    return [_tool(index, tool, template) for index, tool in enumerate(tools)]


def _tool(index: int, tool: Any, template: ChatTemplate) -> dict[str, Any]:
    if not isinstance(tool, Mapping):
        raise RequestError(f"tools[{index}]: expected an object, got {type(tool).__name__}", "tools")
    function = tool.get("function")
    if not isinstance(function, Mapping):
        return dict(tool)
    more: dict[str, Any] = {}
    schema = function.get("parameters")
    if not schema:
        # OpenAI: without parameters, the function takes none.
        more["parameters"] = {"type": "object", "properties": {}}
    elif isinstance(schema, Mapping) and "properties" not in schema and template.trials.needs_properties:
        more["parameters"] = {**schema, "properties": {}}
    if function.get("description") is None and template.trials.needs_description:
        more["description"] = ""
    return {**tool, "function": {**function, **more}} if more else dict(tool)
