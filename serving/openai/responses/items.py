"""Items of a request: read, numbered, and listed again."""

import secrets
from collections.abc import Sequence
from typing import Any

import msgspec

from jaxllm.errors import RequestError, nearest, quoted
from jaxllm.serving.http.body.base import UnsupportedError, with_template_fields
from jaxllm.serving.http.body.decode import as_body
from jaxllm.serving.openai.protocol.response_answers import (
    CustomCallItem,
    FunctionCallItem,
    OutputItem,
    OutputMessage,
    ReasoningItem,
)
from jaxllm.serving.openai.protocol.response_items import (
    ITEM_KINDS,
    CustomCallInput,
    CustomCallOutput,
    FunctionCallInput,
    FunctionCallOutput,
    InputPart,
    Item,
    ItemReference,
    MessageItem,
    ReasoningInput,
    kind_of_untyped,
)
from jaxllm.serving.text.messages import arguments_object

_PREFIXES: dict[type[Item] | type[OutputItem], str] = {
    MessageItem: "msg",
    OutputMessage: "msg",
    FunctionCallInput: "fc",
    FunctionCallItem: "fc",
    CustomCallInput: "ctc",
    CustomCallItem: "ctc",
    CustomCallOutput: "ctco",
    FunctionCallOutput: "fco",
    ReasoningInput: "rs",
    ReasoningItem: "rs",
}


def new_id(kind: type[Item] | type[OutputItem]) -> str:
    """An id for an item."""
    return f"{_PREFIXES[kind]}_{secrets.token_hex(16)}"


def read_input(given: str | Sequence[dict[str, Any]]) -> list[Item | ItemReference]:
    """The items of a request's input, as they are. Raises `RequestError`s that name the item."""
    if isinstance(given, str):
        return [MessageItem(type="message", role="user", content=given)]
    if not given:
        raise RequestError("input: the list is empty", "input")
    return [_read_item(item, f"input[{index}]") for index, item in enumerate(given)]


def _read_item(item: dict[str, Any], path: str) -> Item | ItemReference:
    kind = item.get("type")
    if kind is None:
        kind = kind_of_untyped(item)
    if not isinstance(kind, str) or kind not in ITEM_KINDS:
        known = ", ".join(map(repr, ITEM_KINDS))
        raise UnsupportedError(
            f"{path}.type={quoted(kind)}: this server supports {known}{nearest(str(kind), ITEM_KINDS)}", f"{path}.type"
        )
    body = as_body(item, ITEM_KINDS[kind], path)
    assert isinstance(body, Item | ItemReference)
    return body


def numbered(item: Item) -> Item:
    """The item with an id, which clients may leave out."""
    made: Item = item if item.id else msgspec.structs.replace(item, id=new_id(type(item)))
    return made


def from_output(item: OutputItem) -> Item:
    """An item that the model made, as clients would send it back."""
    match item:
        case OutputMessage():
            parts = [InputPart(type="output_text", text=part.text) for part in item.content]
            return MessageItem(type="message", id=item.id, status=item.status, role="assistant", content=parts)
        case _:
            plain = msgspec.to_builtins(item)
            made = msgspec.convert(plain, ITEM_KINDS[plain["type"]])
            assert isinstance(made, Item)
            return made


def listed(item: Item) -> dict[str, Any]:
    """The item as a list of input items shows it: content in parts, and with a status."""
    plain = with_template_fields(item) if isinstance(item, MessageItem) else msgspec.to_builtins(item)
    plain.setdefault("status", "completed")
    for name in ("content", "output"):
        parts = getattr(item, name, None)
        if isinstance(parts, list):
            plain[name] = [with_template_fields(each) for each in parts]
    match item:
        case MessageItem():
            plain["type"] = "message"
            kind = "output_text" if item.role == "assistant" else "input_text"
            content = [{"type": kind, "text": item.content}] if isinstance(item.content, str) else plain["content"]
            if item.role == "assistant":
                content = [{"annotations": [], **part} if part["type"] == "output_text" else part for part in content]
            plain["content"] = content
        case FunctionCallInput() if not isinstance(item.arguments, str):
            plain["arguments"] = msgspec.json.encode(arguments_object(item.arguments)).decode()
        case ReasoningInput():
            plain.setdefault("summary", [])
    return plain
