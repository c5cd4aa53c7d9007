"""The calls of one reply, and calls written as JSON objects, which many families share."""

import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from jaxllm.serving.reply.lark import Lark
from jaxllm.serving.reply.parts import ContentDelta, ReplyPart, ToolCallArguments, ToolCallStart
from jaxllm.serving.reply.source import SPACE, Parsing, Source, behind

Schemas = Mapping[str, Mapping[str, Any]]
"""JSON schemas of the parameters of functions, by name."""

NAME = re.compile(r"[\w.\-]*")
"""Characters of functions' names."""


@dataclass(frozen=True)
class CallKeys:
    """The keys of a call that is an object of JSON."""

    name: str = "name"
    arguments: tuple[str, ...] = ("arguments", "parameters")
    id: str = "id"
    others: tuple[str, ...] = ("type",)

    def __contains__(self, key: str | None) -> bool:
        return key in (self.name, *self.arguments, self.id, *self.others)


CALL_KEYS: Final = CallKeys()
"""As OpenAI calls them, and nearly everybody."""


class Calls:
    """Counts the calls of a reply, and names them."""

    def __init__(self, schemas: Schemas, new_id: Callable[[], str], *, enabled: bool = True) -> None:
        """`schemas` are of the functions that the model was shown; it may call others, which is for the client to see.

        `new_id` makes ids for calls that have none. Not `enabled`: calls are content.
        """
        self.schemas = schemas
        self.enabled = enabled
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


def json_call(
    source: Source, calls: Calls, *, needs_arguments: bool = False, keys: CallKeys = CALL_KEYS
) -> Parsing[bool]:
    """Read a call such as `{"name": "add", "arguments": {"a": 1}}`; False, and nothing is read: this is none.

    Arguments come as they are written, from the moment when name and opening brace are known. The key `parameters` is
    another name of `arguments`, which may be missing unless `needs_arguments`, and be a text that holds JSON; `id` and
    `type` may come too. In another order than name, arguments, the call comes when it is complete.
    """
    start = source.at
    if (yield from _JsonCall(source, calls, keys, needs_arguments=needs_arguments).read()):
        return True
    source.back(start)
    return False


class _JsonCall:
    """Reads one call."""

    def __init__(self, source: Source, calls: Calls, keys: CallKeys, *, needs_arguments: bool) -> None:
        self._source = source
        self._calls = calls
        self._keys = keys
        self._needs_arguments = needs_arguments
        self._name: str | None = None
        self._id: str | None = None
        self._arguments: str | None = None
        self._started = False

    def read(self) -> Parsing[bool]:
        source = self._source
        if not (yield from source.match("{")):
            return False
        while True:
            # When the call has begun, what is wrong behind its arguments changes nothing.
            yield from source.skip()
            key = yield from source.json_string()
            if key not in self._keys and not self._started:
                return False
            yield from source.skip()
            if key is None or not (yield from source.match(":")):
                return self._started
            yield from source.skip()
            if not (yield from self._value(key)):
                return self._started
            yield from source.skip()
            if not (yield from source.match(",")):
                break
        if not (yield from source.match("}")):
            return self._started
        return (yield from self._complete())

    def _value(self, key: str) -> Parsing[bool]:
        source = self._source
        if key == self._keys.name and self._name is None:
            self._name = yield from source.json_string()
            return bool(self._name)
        if key in self._keys.arguments and self._arguments is None and not self._started:
            if self._name is not None and (yield from source.peek()) == "{":
                self._started = True
                yield self._calls.start(self._name, self._id)
                return (yield from source.json_value(self._calls.arguments))
            self._arguments = yield from self._held_arguments()
            return self._arguments is not None
        start = source.at
        whole = (self._started or key in (self._keys.id, *self._keys.others)) and (yield from source.json_value())
        if key == self._keys.id and whole:
            self._id = source.text[start : source.at].strip('"')
        return whole

    def _held_arguments(self) -> Parsing[str | None]:
        """Arguments as text that is an object of JSON, where it can be read so."""
        source, start = self._source, self._source.at
        if (yield from source.peek()) == '"':
            text = yield from source.json_string()
            return text if text is not None and is_object(text) else None
        whole = yield from source.json_value()
        text = source.text[start : source.at]
        return text if whole and (text.startswith("{") or text == "null") else None

    def _complete(self) -> Parsing[bool]:
        if self._started:
            return True
        if self._name is None or (self._arguments is None and self._needs_arguments):
            return False
        yield self._calls.start(self._name, self._id)
        yield self._calls.arguments("{}" if self._arguments in (None, "null") else self._arguments or "")
        return True


def is_object(text: str) -> bool:
    """Whether this is an object of JSON."""
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def json_calls(
    source: Source, calls: Calls, keys: CallKeys = CALL_KEYS, *, needs_arguments: bool = False
) -> Parsing[bool]:
    """Read a list of calls, or a single one; False, and nothing is read: the first is none.

    What comes where a further call was expected is left to be read.
    """
    start = source.at
    yield from source.skip()
    listed = yield from source.match("[")
    yield from source.skip()
    if not (yield from json_call(source, calls, needs_arguments=needs_arguments, keys=keys)):
        source.back(start)
        return False
    while listed:
        yield from source.skip()
        following = yield from source.match(",", "]")
        if following != ",":
            break
        yield from source.skip()
        if not (yield from json_call(source, calls, keys=keys)):
            break
    return True


def tagged_calls(
    source: Source, begins: Sequence[str], read: Callable[[str], Parsing[bool]], ends: Sequence[str] = ()
) -> Parsing[None]:
    """Read text in which certain tags begin calls, to its end.

    `read` is called with the tag and reads what is behind it; where it returns False, having read nothing, the tag is
    content. One of `ends` behind calls is dropped, and space around them but between one text and another; so is what
    the source says is markup.
    """
    spoken = False
    every = (*begins, *(tag for tag in source.dropped if tag not in begins))

    def content(text: str) -> ContentDelta:
        nonlocal spoken
        spoken = True
        return ContentDelta(text)

    make: Callable[[str], ReplyPart] = content
    while True:
        marker, space = yield from source.until(() if source.tired else every, make)
        if marker is None:
            return
        is_call = marker in begins and (yield from read(marker))
        if is_call:
            yield from close(source, ends)
        if is_call or marker in source.dropped:
            space = yield from source.skip()
            make = behind(space, content) if spoken else content
        else:
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
