"""Reading one call that has tags around its values."""

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jaxllm.serving.reply.calls import NAME, Calls, close
from jaxllm.serving.reply.json_calls import json_calls, named_call
from jaxllm.serving.reply.json_text import whole_json
from jaxllm.serving.reply.parts import ToolCallArguments
from jaxllm.serving.reply.scalars import whole_characters
from jaxllm.serving.reply.schemas import parameter_types
from jaxllm.serving.reply.source import SPACE, Parsing, Source
from jaxllm.serving.reply.values import as_json

if TYPE_CHECKING:
    from jaxllm.serving.reply.formats.value_tags import ValueTags

_ATTRIBUTES = re.compile(r"[^<>\n]*")
_CDATA, _NO_CDATA = "<![CDATA[", "]]>"
_TEXT = frozenset({"string"})
_ALL_IN_ONE = frozenset({"arguments", "parameters", "input", "args"})
"""Names under which models write all arguments as one object."""


class ValueTagCall:
    """Reads one call."""

    def __init__(self, tags: "ValueTags", source: Source, calls: Calls) -> None:
        self._tags = tags
        self._source = source
        self._calls = calls
        self._schema: Mapping[str, Any] = {}
        self._written = "{"
        self._whole: str | None = None
        """All arguments, where they came as one value."""

    def read(self, tag: str) -> Parsing[bool]:
        """Read the call after its first tag; False, and nothing is read: this is none."""
        source, tags, start = self._source, self._tags, self._source.at
        if tag not in tags.heads or tags.bare_name:
            yield from source.skip()
            if (yield from source.comes("{", "[")):
                stops = (*tags.begins, *tags.last, tags.tail)
                if (yield from json_calls(source, self._calls, stops=stops)):
                    return True
                source.at = start
                return False
            source.at = start
        name = (yield from self._name()) if tag in tags.heads or (yield from self._head()) else ""
        if not name:
            source.back(start)
            return False
        yield from source.skip()
        if (yield from source.comes("{")):
            yield from named_call(source, self._calls, name, stops=tags.call_ends)
            yield from source.skip()
            yield from source.match(tags.tail)
        else:
            yield self._calls.start(name)
            self._schema = self._calls.schemas.get(name, {})
            if (yield from self._parameters()):
                yield self._calls.arguments(self._whole or ("{}" if self._written == "{" else "}"))
        for _ in tags.last:
            yield from close(source, tags.last)
        return True

    def _head(self) -> Parsing[bool]:
        """Read over the tags that may come before the head, and over it."""
        source, tags = self._source, self._tags
        while True:
            yield from source.skip()
            found = yield from source.match(*tags.first, *tags.heads)
            if found is None and tags.words:
                found = yield from source.run(NAME)
            if not found or found in tags.heads:
                return bool(found)

    def _name(self) -> Parsing[str]:
        """Read the name and what is after it; empty: there is none."""
        source, tags = self._source, self._tags
        if not tags.bare_name:
            text = yield from source.run(_ATTRIBUTES)
            name = _attribute(text)
            return name if name and (yield from source.match(tags.behind_name)) else ""
        yield from source.skip()
        name = yield from source.run(NAME)
        yield from source.skip()
        if tags.behind_name and (yield from source.match(tags.behind_name)):
            return name
        following = () if tags.behind_name else (*tags.keys, '{"')
        return name if (yield from source.comes(*following, tags.tail)) else ""

    def _parameters(self) -> Parsing[bool]:
        """Read all parameters, and over the call's end if it has its own; False: the text ended before."""
        source, tags = self._source, self._tags
        types = parameter_types(self._schema)
        yield from source.skip()
        marker = yield from source.match(*tags.keys, tags.tail)
        while marker != tags.tail:
            if marker is not None:
                marker = yield from self._parameter(types)
                continue
            if (yield from source.comes(*tags.call_ends)):
                return True
            # What stands between parameters is none of them.
            found = yield from source.take_until(*tags.keys, *tags.call_ends)
            if found is None:
                self._leave_out_begun_tag()
                return False
            source.at -= len(found[1])
            marker = yield from source.match(*tags.keys, tags.tail)
        return True

    def _leave_out_begun_tag(self) -> None:
        """Read what is left of a text that ends within a tag of this call."""
        source, tags = self._source, self._tags
        begun = source.text[source.at :].strip()
        if any(tag.startswith(begun) for tag in (*tags.keys, *tags.key_ends, *tags.call_ends)):
            source.at = len(source.text)

    def _parameter(self, types: Mapping[str, set[str]]) -> Parsing[str | None]:
        """Read a parameter whose tag has begun; returns the tag of this call that follows."""
        source, tags = self._source, self._tags
        text = yield from source.run(_ATTRIBUTES)
        if not (yield from self._skip_after_key()):
            return None
        key = text.strip() if tags.bare_name else _attribute(text)
        if tags.padding:
            yield from source.match(tags.padding)
        quoted = tags.cdata and (yield from source.match(_CDATA))
        ends = (f"{_NO_CDATA}{tags.behind_value}",) if quoted else tags.value_ends
        if self._is_all_in_one(key):
            return (yield from self._read_all_arguments(key, ends))
        yield from self._begin(key)
        kinds = types.get(key, types.get("", set(_TEXT)))
        typed = tags.typed is not None and tags.typed[1].partition("{")[0] in text
        if (kinds == _TEXT and not typed) or (tags.typed is not None and tags.typed[0] in text):
            marker = yield from self._text(ends)
        else:
            marker = yield from self._json(ends, kinds - _TEXT if typed else kinds)
        return (yield from self._following(marker, ends))

    def _begin(self, key: str) -> Parsing[None]:
        yield self._calls.arguments(f"{self._written}{_string(key)}: ")
        self._written = ", "

    def _is_all_in_one(self, key: str) -> bool:
        """Whether this may be all arguments: as the only parameter, which the function does not have."""
        known = self._schema.get("properties")
        return self._written == "{" and key in _ALL_IN_ONE and isinstance(known, Mapping) and key not in known

    def _read_all_arguments(self, key: str, ends: tuple[str, ...]) -> Parsing[str | None]:
        """Read all arguments, if that is what the value is and nothing follows it."""
        found = yield from self._take(ends)
        if found is None:
            return None
        marker = yield from self._following(found[1], ends)
        whole = whole_json(found[0])
        if whole is not None and whole.startswith("{") and marker not in self._tags.keys:
            self._whole = whole
            return marker
        yield from self._begin(key)
        yield self._calls.arguments(as_json(found[0].removesuffix(self._tags.padding), set()))
        return marker

    def _following(self, marker: str | None, ends: tuple[str, ...]) -> Parsing[str | None]:
        """The tag of this call after a value that ended with `marker`; another call's is left to be read."""
        source, tags = self._source, self._tags
        if marker in (tags.behind_value, *(ends if len(ends) == 1 else ())):
            yield from source.skip()
        elif marker is not None:
            source.at -= len(marker)
        return (yield from source.match(*tags.keys, tags.tail))

    def _skip_after_key(self) -> Parsing[bool]:
        """Read over what is after a key, which may have space in it between tags."""
        source = self._source
        for tag in self._tags.key_ends:
            if not (yield from source.match(tag)):
                yield from source.skip()
                if not (yield from source.match(tag)):
                    return False
        return True

    def _text(self, ends: tuple[str, ...]) -> Parsing[str | None]:
        """Hand on a text as it comes; the padding before the tag is none of it."""
        source, own = self._source, ends[0]
        yield self._calls.arguments('"')
        while True:
            marker, rest = yield from source.until(ends, self._quoted, trim=SPACE)
            if marker is None:
                return None
            if marker == own:
                yield self._quoted(rest.removesuffix(self._tags.padding))
                break
            if (yield from self._ends_value(marker)):
                break
            yield self._quoted(rest + marker)
            ends = (own,)
        yield self._calls.arguments('"')
        return marker

    def _quoted(self, text: str) -> ToolCallArguments:
        return self._calls.arguments(_string(text)[1:-1])

    def _json(self, ends: tuple[str, ...], types: set[str]) -> Parsing[str | None]:
        """Hand on another value when it is complete; as a text, if it is nothing better."""
        source = self._source
        found = yield from self._take(ends)
        if found is None:
            yield self._calls.arguments(source.rest(ends))
            return None
        yield self._calls.arguments(as_json(found[0].removesuffix(self._tags.padding), types))
        return found[1]

    def _take(self, ends: tuple[str, ...]) -> Parsing[tuple[str, str] | None]:
        """Read a value and over the tag that ends it; returns both. None, and nothing is read: there is no such tag."""
        source, start, own = self._source, self._source.at, ends[0]
        found = yield from source.take_until(*ends)
        if found is None or found[1] == own:
            return found
        if (yield from self._ends_value(found[1])):
            return found[0].rstrip(), found[1]
        behind = yield from source.take_until(own)
        if behind is None:
            source.at = start
            return None
        return f"{found[0]}{found[1]}{behind[0]}", own

    def _ends_value(self, marker: str) -> Parsing[bool]:
        """Whether a tag within a value, which was read, ends it: no end of the value comes before another tag."""
        source, tags, start = self._source, self._tags, self._source.at
        if marker in tags.keys:
            yield from source.run(_ATTRIBUTES)
            ends = yield from self._skip_after_key()
        else:
            found = yield from source.take_until(tags.behind_value, *tags.keys, *tags.heads)
            ends = found is None or found[1] != tags.behind_value
        source.at = start
        return ends


def _string(text: str) -> str:
    return json.dumps(whole_characters(text), ensure_ascii=False)


def _attribute(text: str) -> str:
    """The first value in quotes, or all of it without quotes and space."""
    text = text.strip()
    if text[:1] in ('"', "'"):
        return text[1:].partition(text[0])[0]
    return text
