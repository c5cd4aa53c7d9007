"""Calls written as objects of JSON, which many families share."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from jaxllm.serving.reply.calls import Calls
from jaxllm.serving.reply.json_text import json_text, read_json
from jaxllm.serving.reply.json_values import json_string, json_value, read_arguments
from jaxllm.serving.reply.source import Parsing, Source

_WRAPPED: Final = "function"
"""OpenAI's form has the call within an object of this key."""


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


def json_call(
    source: Source,
    calls: Calls,
    *,
    needs_arguments: bool = False,
    keys: CallKeys = CALL_KEYS,
    stops: Sequence[str] = (),
    outside: Sequence[str] = (),
) -> Parsing[bool]:
    """Read a call such as `{"name": "add", "arguments": {"a": 1}}`; False, and nothing is read: this is none.

    Arguments come as they are written, from the moment when name and opening brace are known. The key `parameters` is
    another name of `arguments`, which may be missing unless `needs_arguments`, and be a text that holds JSON; `id` and
    `type` may come too. In another order than name, arguments, the call comes when it is complete. Markup ends it
    although it was not closed: see `json_text`.
    """
    start = source.at
    call = _JsonCall(source, calls, keys, needs_arguments=needs_arguments, stops=stops, outside=outside)
    if (yield from call.read()):
        return True
    source.back(start)
    return False


class _JsonCall:
    """Reads one call."""

    def __init__(
        self,
        source: Source,
        calls: Calls,
        keys: CallKeys,
        *,
        needs_arguments: bool,
        stops: Sequence[str],
        outside: Sequence[str],
    ) -> None:
        self._source = source
        self._calls = calls
        self._keys = keys
        self._needs_arguments = needs_arguments
        self._stops = stops
        self._outside = outside
        self._name: str | None = None
        self._id: str | None = None
        self._arguments: str | None = None
        self._started = False

    def read(self) -> Parsing[bool]:
        source = self._source
        if not (yield from source.match("{")):
            return False
        # Some templates show calls in two pairs of braces, which models then write.
        yield from source.match("{")
        if not (yield from self._members()):
            return self._started
        if not (yield from source.match("}")) and not (yield from self._at_stop()):
            return self._started
        return (yield from self._complete())

    def _members(self) -> Parsing[bool]:
        """Read the object up to its closing brace; False: there is something else in it than a call has."""
        source = self._source
        while True:
            # When the call has begun, what is wrong after its arguments changes nothing.
            yield from source.skip()
            if (yield from source.comes("}")):
                return True
            key = yield from json_string(source)
            if key not in self._keys and key != _WRAPPED and not self._may_have_more:
                return False
            yield from source.skip()
            if key is None or not (yield from source.match(":")):
                return False
            yield from source.skip()
            if not (yield from self._value(key)):
                return False
            yield from source.skip()
            if not (yield from source.match(",")):
                return True

    @property
    def _may_have_more(self) -> bool:
        """Whether a key that no call has changes nothing: arguments were there, or must still come."""
        return self._started or (self._needs_arguments and self._name is not None)

    def _at_stop(self) -> Parsing[bool]:
        every = (*self._stops, *self._outside)
        return bool(every) and (yield from self._source.comes(*every))

    def _value(self, key: str) -> Parsing[bool]:
        source = self._source
        named = key == self._keys.name or (key == _WRAPPED and (yield from source.peek()) != "{")
        if named and self._name is None:
            name = yield from json_string(source)
            self._name = None if name is None or any(stop in name for stop in self._stops) else name
            return bool(self._name)
        if key == _WRAPPED and not self._started and self._name is None:
            return (yield from self._wrapped())
        if key in self._keys.arguments and self._arguments is None and not self._started:
            if self._name is not None and (yield from source.peek()) == "{":
                self._started = True
                yield self._calls.start(self._name, self._id)
                return (yield from json_text(source, self._calls.arguments, self._stops, self._outside))
            self._arguments = yield from read_arguments(source, self._stops)
            return self._arguments is not None
        known = self._may_have_more or key in (self._keys.id, *self._keys.others)
        value = (yield from json_value(source, self._stops)) if known else None
        if key == self._keys.id and value is not None:
            self._id = value.strip("\"'")
        return value is not None

    def _wrapped(self) -> Parsing[bool]:
        """Read the object within, as if its members were this one's."""
        source = self._source
        if not (yield from source.match("{")) or not (yield from self._members()):
            return False
        yield from source.match("}")
        return True

    def _complete(self) -> Parsing[bool]:
        if self._started:
            return True
        if self._name is None or (self._arguments is None and self._needs_arguments):
            return False
        yield self._calls.start(self._name, self._id)
        yield self._calls.arguments(self._arguments or "{}")
        return True


def json_calls(
    source: Source,
    calls: Calls,
    keys: CallKeys = CALL_KEYS,
    *,
    needs_arguments: bool = False,
    stops: Sequence[str] = (),
    outside: Sequence[str] = (),
) -> Parsing[bool]:
    """Read a list of calls, or some without one; False, and nothing is read: the first is none.

    What comes where a further call was expected is left to be read.
    """
    start = source.at
    yield from source.skip()
    listed = yield from source.match("[")
    yield from source.skip()
    while not (yield from json_call(
        source, calls, needs_arguments=needs_arguments, keys=keys, stops=stops, outside=outside
    )):  # fmt: skip
        if not listed or needs_arguments or not (yield from _pass_over_object(source, stops, outside)):
            source.back(start)
            return False
    while True:
        start = source.at
        yield from source.skip()
        if listed and (yield from source.match("]")):
            return True
        yield from source.match(",", ";")
        yield from source.skip()
        if not (yield from json_call(source, calls, keys=keys, stops=stops, outside=outside)):
            source.at = start
            return True


def _pass_over_object(source: Source, stops: Sequence[str], outside: Sequence[str]) -> Parsing[bool]:
    """Read over an object of a list that is no call, and what joins it to the next; False: there is none of these."""
    if not (yield from source.comes("{")) or (yield from read_json(source, stops, outside)) is None:
        return False
    yield from source.skip()
    if not (yield from source.match(",", ";")):
        return False
    yield from source.skip()
    return (yield from source.comes("{"))


def named_call(
    source: Source,
    calls: Calls,
    name: str,
    call_id: str | None = None,
    *,
    stops: Sequence[str] = (),
    outside: Sequence[str] = (),
) -> Parsing[bool]:
    """Read the arguments of a call whose name was read; False, and anything may have been read: there are none.

    Where the text is over, the call has begun, and none of its arguments came.
    """
    if not name:
        return False
    yield from source.skip()
    if (following := (yield from source.peek())) in ("{", ""):
        yield calls.start(name, call_id)
        if following:
            yield from json_text(source, calls.arguments, stops, outside)
        return True
    arguments = yield from read_arguments(source, stops)
    if arguments is None:
        return False
    yield calls.start(name, call_id)
    yield calls.arguments(arguments)
    return True
