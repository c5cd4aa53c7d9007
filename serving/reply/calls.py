"""The calls of one reply, and text in which tags begin them."""

import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxllm.serving.reply.lark import Lark
from jaxllm.serving.reply.parts import ContentDelta, ReplyPart, ToolCallArguments, ToolCallStart
from jaxllm.serving.reply.source import SPACE, Parsing, Source, behind

Schemas = Mapping[str, Mapping[str, Any]]
"""JSON schemas of the parameters of functions, by name."""

NAME = re.compile(r"[\w.\-]*")
"""Characters of functions' names."""


class Calls:
    """Counts the calls of a reply, and names them."""

    def __init__(self, schemas: Schemas, new_id: Callable[[], str], *, enabled: bool = True) -> None:
        """`schemas` are of the functions that the model was shown; it may call others, which is for the client to see.

        `new_id` makes ids for calls that have none. Not `enabled`: calls are content.
        """
        self.schemas = schemas
        self.enabled = enabled
        self.openings: tuple[str, ...] = ()
        """Tags that begin calls and nothing else, so that reasoning ends there."""
        self.begun: Callable[[Source, tuple[str, ...]], Parsing[bool]] | None = None
        """Reads all the rest of a reply if a call begins there; False, and nothing is read: there is none.

        It is told what ends the reasoning, which is markup then.
        """
        self._new_id = new_id
        self._ids = set[str]()
        self._count = 0

    def start(self, name: str, call_id: str | None = None) -> ToolCallStart:
        """The beginning of the next call; an id that another call has is replaced."""
        self._count += 1
        if not call_id or call_id in self._ids:
            call_id = self._new_id()
        self._ids.add(call_id)
        return ToolCallStart(self._count - 1, call_id, name)

    def arguments(self, text: str) -> ToolCallArguments:
        """Arguments of the call that was started last."""
        return ToolCallArguments(self._count - 1, text)


def tagged_calls(
    source: Source,
    begins: Sequence[str],
    read: Callable[[str], Parsing[bool]],
    ends: Sequence[str] = (),
    stray: Sequence[str] = (),
    before: Sequence[str] = (),
) -> Parsing[None]:
    """Read text in which certain tags begin calls, to its end.

    `read` is called with the tag and reads what is after it; where it returns False, having read nothing, the tag is
    content. One of `ends` after calls is dropped, and space around them but between one text and another; so is what
    the source says is markup. `before` are content after which calls may come. Once a call was read, tags are markup
    wherever they stand, and `stray` ones too.
    """
    spoken = called = False
    markup = [tag for tag in (*ends, *stray) if tag not in begins and not any(one.startswith(tag) for one in begins)]

    def content(text: str) -> ContentDelta:
        nonlocal spoken
        spoken = True
        return ContentDelta(text)

    make: Callable[[str], ReplyPart] = content
    while True:
        # Reasoning may have ended in a call, after which its end is markup.
        dropped = (*source.dropped, *markup) if called else source.dropped
        every = tuple(dict.fromkeys((*begins, *before, *dropped)))
        marker, space = yield from source.until(dropped if source.tired else every, make)
        if marker is None:
            return
        if marker in before and marker not in dropped:
            yield content(space + marker)
            space = marker = ""
        is_call = marker in ("", *begins) and (yield from read(marker))
        if is_call:
            called = True
            yield from close(source, ends)
        if is_call or marker in dropped or (called and marker.startswith(("<", "[", "]<"))):
            space = yield from source.skip()
            make = behind(space, content) if spoken else content
        else:
            if marker:
                yield content(space + marker)
            make = content


def marked_text(source: Source) -> Parsing[None]:
    """Read text without calls to its end, and leave out what the source says is markup."""

    def none(marker: str) -> Parsing[bool]:
        yield from ()
        return False

    return tagged_calls(source, (), none)


def close(source: Source, ends: Sequence[str]) -> Parsing[None]:
    """Read over the end of a call, and brackets that a model writes too many of before it."""
    start = source.at
    yield from source.skip(SPACE + "]}")
    if not (yield from source.match(*ends)):
        source.back(start)


def named_object(
    lark: Lark, name: str, schema: Mapping[str, Any], arguments: str = "arguments", key: str = "name"
) -> str:
    """The grammar of `{"name": "add", "arguments": {...}}`."""
    head = f'{{"{key}": ' + json.dumps(name) + f', "{arguments}": '
    return f"{lark.text(head)} {lark.json(schema)} {lark.text('}')}"


def new_call_id() -> str:
    """A random id in vLLM's form."""
    return f"chatcmpl-tool-{uuid.uuid4().hex}"
