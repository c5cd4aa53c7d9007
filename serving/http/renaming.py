"""Errors of a request, told in the fields of the interface that the request came by."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType

from jaxllm.errors import RequestError

_MESSAGE = re.compile(r"messages\[(\d+)\]")
_PART = re.compile(r"messages\[\d+\]\.content\[\d+\]")
_FUNCTION = re.compile(r"^(tools\[\d+\]|tool_choice\b.*)\.function(?=\.|$)")
_TOOL = re.compile(r"tools\[\d+\]\.")
_HEAD = re.compile(r"[\w.\[\]]+")


@contextmanager
def renaming(
    fields: Mapping[str, str], origins: Sequence[str], parts: Mapping[str, str] = MappingProxyType({})
) -> Iterator[None]:
    """Rename fields in errors raised inside.

    `fields` has a name for each field that the interface calls otherwise, such as `response_format.json_schema`; those
    of a tool begin with `tools.`. `origins` says for each message which field it was made of, and `parts` the same of
    some parts of messages, by their place (`messages[2].content[0]`).
    """
    try:
        yield
    except RequestError as error:
        if error.parameter is None:
            raise
        old, new = error.parameter, _renamed(error.parameter, fields, origins, parts)
        error.parameter = new
        message = str(error)
        head = _HEAD.match(message)
        if head is not None:
            # What the message begins with is the field, or a place in it.
            place = _renamed(head[0], fields, origins, parts) if head[0] != old else new
            message = place + message[head.end() :]
        error.args = (message,)
        raise


def _renamed(path: str, fields: Mapping[str, str], origins: Sequence[str], parts: Mapping[str, str]) -> str:
    part = _PART.match(path)
    if part is not None and part[0] in parts:
        return parts[part[0]] + path[part.end() :]
    message = _MESSAGE.match(path)
    if message is not None:
        return origins[int(message[1])]
    # Chats have functions inside of tools.
    path = _FUNCTION.sub(r"\1", path)
    tool = _TOOL.match(path)
    if tool is not None:
        return tool[0] + _mapped(f"tools.{path[tool.end() :]}", fields).removeprefix("tools.")
    return _mapped(path, fields)


def _mapped(path: str, fields: Mapping[str, str]) -> str:
    for known in sorted(fields, key=len, reverse=True):
        if path == known or path.startswith((f"{known}.", f"{known}[")):
            return fields[known] + path[len(known) :]
    return path


@contextmanager
def naming_fields(**names: str) -> Iterator[None]:
    """Name the fields of errors raised inside as the request does: `naming_fields(prompt="messages")`."""
    try:
        yield
    except RequestError as error:
        if error.parameter in names:
            error.parameter = names[error.parameter]
        raise
