"""A conversation as a template sees it: plain values under the names that templates of Hugging Face's know."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

_REASONING: Final = ("reasoning_content", "thinking", "reasoning")
_TAG: Final = "CONTINUE_FINAL_MESSAGE_TAG "
"""Stands where a message is to be continued. It ends with a space: templates that trim their contents show that."""
OWN: Final = frozenset(
    (
        "messages",
        "conversation",
        "tools",
        "add_generation_prompt",
        "continue_final_message",
        "chat_template",
        "tokenize",
    )
)
"""Variables that a conversation sets itself, so that no further one may have the name."""
_ITEM: Final = 8


class Conversation(msgspec.Struct, kw_only=True):
    """The variables of a template. `continues`: the last message is left open."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Any] | None = None
    add_generation_prompt: bool = True
    continues: bool = False
    variables: Mapping[str, Any] = {}
    """Special tokens by their names, and what a request adds to them."""


def apply(template: str, given: Conversation) -> str:
    """The prompt. Raises `TemplateLimitError`, `ValueError`, and whatever the template raises."""
    # Jinja's import takes longer than all else that is needed to generate without conversations.
    from jaxllm.serving.text.templates.environment import render

    for name in given.variables:
        if name in OWN:
            raise ValueError(f"{name} is set by the request itself, not by an argument of the template")
    plain = _Plain()
    messages = [_message(plain.of(each)) for each in given.messages]
    variables = {
        "documents": None,
        **{name: plain.of(value) for name, value in given.variables.items()},
        "messages": messages,
        "tools": plain.of(given.tools),
        "add_generation_prompt": given.add_generation_prompt,
    }
    documents = variables["documents"]
    if documents is not None and not (
        isinstance(documents, list) and all(isinstance(each, dict) for each in documents)
    ):
        raise ValueError("documents must be a list of objects, such as {'title': ..., 'text': ...}")
    if not given.continues:
        return render(template, variables, plain.size)
    final = _tag(messages[-1], template)
    return _cut(render(template, variables, plain.size), final)


def chosen(own: str | Mapping[str, str] | None, given: str | None, tools: Sequence[Any] | None) -> str:
    """The template for a conversation: a tokenizer's `own`, which may be several by name, or the one given.

    Raises `ValueError` where that is none.
    """
    if not isinstance(own, Mapping):
        template = own if given is None else given
    elif given is not None:
        template = own.get(given, given)
    else:
        template = own["tool_use"] if tools and "tool_use" in own else own.get("default")
    if template is None:
        raise ValueError(f"the model has several chat templates but no default: name one of {sorted(own or ())}")
    return template


class _Plain:
    """Copies values as JSON has them: objects with methods of their own would be a way out of the sandbox."""

    def __init__(self) -> None:
        self.size = 0
        """Size of all that was copied, as `budget.size_of` counts."""

    def of(self, value: Any) -> Any:
        self.size += _ITEM
        kind = type(value)
        if kind is str:
            self.size += len(value)
            return value
        if kind is dict:
            return {name if type(name) is str else self.of(name): self.of(item) for name, item in value.items()}
        if kind is list:
            return [self.of(item) for item in value]
        return value if value is None or kind in (bool, int, float) else self._other(value)

    def _other(self, value: Any) -> Any:
        match value:
            case str():
                return self.of(str.__str__(value))
            case bool() | int():
                return int.__int__(value)
            case float():
                return float.__float__(value)
            case Mapping():
                return self.of(dict(value))
            case list() | tuple():
                return self.of(list(value))
        made = getattr(value, "model_dump", None) or getattr(value, "tolist", None)
        if callable(made):
            return self.of(made())
        try:
            return self.of(msgspec.to_builtins(value))
        except TypeError:
            return f"<{type(value).__name__}>"


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """Without what is not there, and with reasoning under each name that templates know."""
    message = {name: value for name, value in message.items() if value is not None}
    reasoning = next((message[name] for name in _REASONING if name in message), None)
    return message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _tag(message: dict[str, Any], template: str) -> str:
    """Mark the end of what is to be continued; the text in front of it."""
    content = message.get("content")
    if content is None:
        raise ValueError("continue_final_message: the final message has no content to continue")
    if "content" not in template:
        raise ValueError("continue_final_message: the chat template does not output the content")
    if isinstance(content, str):
        message["content"] = content + _TAG
        return content
    part = next((each for each in reversed(content) if isinstance(each, dict) and "text" in each), None)
    if part is None:
        raise ValueError("continue_final_message: the final message has no text to continue")
    final: str = part["text"]
    part["text"] = final + _TAG
    return final


def _cut(rendered: str, final: str) -> str:
    """The prompt up to the mark."""
    place = rendered.rfind(_TAG.strip())
    if place < 0 or final.strip() not in rendered:
        raise ValueError("continue_final_message: the chat template alters the final message")
    keeps_spaces = rendered.startswith(_TAG, place)
    return rendered[:place] if keeps_spaces else rendered[:place].rstrip()
