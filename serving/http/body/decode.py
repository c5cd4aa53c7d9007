"""Bodies of requests: JSON to Structs, with errors that say where and what."""

import json
import math
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from jaxllm.errors import nearest, quoted, shortened
from jaxllm.serving.http.body.base import Body
from jaxllm.serving.http.body.ignored_fields import IgnoredFields
from jaxllm.serving.http.body.misspelling import field_names
from jaxllm.serving.http.body.settle import prune, settle
from jaxllm.serving.http.errors import BodyError

Kind = TypeVar("Kind", bound=Body)

_PROBLEM = re.compile(r"(?P<what>.*?)(?: - at `(?:key in )?\$(?P<path>.*)`)?", re.DOTALL)
_FIELD = re.compile(r"Object (contains unknown|missing required) field `(.*)`", re.DOTALL)
_MISMATCH = re.compile(r"Expected `(.*?)`(.*)", re.DOTALL)
_WORDS = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
}
_NO_CHOICE = "Invalid enum value"
_UNKNOWN = "Object contains unknown field"
_EXPLAINED_BYTES = 2**16
"""Larger malformed bodies are not looked at a second time for a better message."""


def decode_body(text: bytes, kind: type[Kind], ignored: IgnoredFields) -> Kind:
    """`decode`, without what is ignored. Raises also `UnsupportedError`."""
    body = decode(text, kind, ignored)
    settle(body, "", ignored)
    return body


def decode(body: bytes, kind: type[Kind], ignored: IgnoredFields | None = None) -> Kind:
    """JSON text as `kind`. Raises `BodyError` for the first thing that is wrong.

    Unknown fields are added to `ignored`, or wrong without it, unless they are for the chat template.
    """
    if not body or body.isspace():
        raise BodyError("the body is empty: expected a JSON object", None, "invalid_json")
    try:
        return _decode(body, kind, ignored)
    # msgspec has an error of its own for what is not UTF-8 since 0.23.
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _explain_malformed(str(error), body) from None
    except RecursionError:
        raise BodyError("the body is nested too deeply", None, "invalid_json") from None


def _decode(body: bytes, kind: type[Kind], ignored: IgnoredFields | None) -> Kind:
    try:
        return _decoder(kind).decode(body)
    except msgspec.ValidationError as error:
        if (ignored is not None and ignored.strict) or not str(error).startswith(_UNKNOWN):
            raise _explain_mismatch(str(error), kind) from None
    # There are unknown fields: it is parsed once more to find them all.
    value = msgspec.json.decode(body)
    prune(value, kind, "", ignored)
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _explain_mismatch(str(error), kind) from None


def as_body(value: Any, kind: type[Kind], path: str) -> Kind:
    """A part of a body, decoded before, as `kind`; `path` is its place. Raises `BodyError` and `UnsupportedError`."""
    try:
        body = msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _explain_mismatch(str(error), kind, path) from None
    settle(body, f"{path}.")
    return body


def decode_query(given: Iterable[tuple[str, str]], kind: type[Kind], ignored: IgnoredFields) -> Kind:
    """Query parameters as `kind`; lists may be written `name[]`. Raises `BodyError`."""
    value: dict[str, Any] = {}
    for key, text in given:
        name = key.removesuffix("[]")
        if key == "include" or key != name:
            value.setdefault(name, []).append(text)
        else:
            value[name] = text
    if not ignored.strict:
        prune(value, kind, "", ignored)
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _explain_mismatch(str(error), kind) from None


@cache
def _decoder(kind: type[Kind]) -> msgspec.json.Decoder[Kind]:
    return msgspec.json.Decoder(kind)


def _explain_mismatch(message: str, kind: type[Body], root: str = "") -> BodyError:
    """What msgspec says about valid JSON of the wrong shape, in the terms of JSON; `root` is where the JSON stands."""
    found = _PROBLEM.fullmatch(message)
    assert found is not None
    what, path = found["what"], (found["path"] or "").lstrip(".").removesuffix("[...]")
    field = _FIELD.fullmatch(what)
    if field is not None:
        return _wrong_field(path, field[2], kind, root, unknown=field[1] == "contains unknown")
    mismatch = _MISMATCH.fullmatch(what)
    if mismatch is not None:
        expected = " or ".join(_WORDS.get(word, word) for word in mismatch[1].split(" | ") if word != "null")
        rest = re.sub("`(.*?)`", lambda match: _WORDS.get(match[1], match[1]), mismatch[2])
        what = f"expected {expected}{rest}"
    choices = _choices(kind, path) if what.startswith(_NO_CHOICE) else ""
    place = _join(root, path)
    return BodyError(f"{shortened(place) or 'the body'}: {shortened(what)}{choices}", place or None, "invalid_type")


def _choices(kind: type[Body], path: str) -> str:
    """The values that a field may have which takes only some, for an error message."""
    parent, _, name = path.rpartition(".")
    hints = [get_type_hints(each).get(name.partition("[")[0]) for each in _kinds_at(kind, parent)]
    values = dict.fromkeys(value for hint in hints for value in _literals_in(hint))
    return f"; choose one of {', '.join(map(repr, values))}" if values else ""


def _literals_in(hint: Any) -> Iterator[Any]:
    if get_origin(hint) is Literal:
        yield from get_args(hint)
    else:
        for part in get_args(hint):
            yield from _literals_in(part)


def _join(*parts: str) -> str:
    return ".".join(filter(None, parts))


def _wrong_field(path: str, name: str, kind: type[Body], root: str, *, unknown: bool) -> BodyError:
    param = _join(root, path, name)
    if not unknown:
        return BodyError(f"{shortened(param)}: this field is required", param, "missing_required_parameter")
    return BodyError(
        f"unknown field {quoted(param)}{nearest(name, _fields_at(kind, path))}", param, "unknown_parameter"
    )


def _fields_at(kind: type[Body], path: str) -> set[str]:
    """The fields that may be given at a place such as `messages[0].content[1]`."""
    return {field for each in _kinds_at(kind, path) for field in field_names(each)}


def _kinds_at(kind: type[Body], path: str) -> list[type[Body]]:
    """The bodies that may stand at a place."""
    kinds = [kind]
    for name in re.findall(r"[^.\[\]]+(?=[.\[]|$)", re.sub(r"\[[^]]*]", "", path)):
        kinds = [inner for each in kinds for inner in _bodies_in(get_type_hints(each).get(name))]
    return kinds


def _bodies_in(hint: Any) -> Iterator[type[Body]]:
    if isinstance(hint, type) and issubclass(hint, Body):
        yield hint
    for part in get_args(hint):
        yield from _bodies_in(part)


def _explain_malformed(message: str, body: bytes) -> BodyError:
    """The fault of text that is not JSON; with the field, where Python's more lenient parser can read it."""
    try:
        if "utf-8" in message.lower():
            body.decode()
    except UnicodeDecodeError as error:
        return BodyError(f"the body is not UTF-8: byte {body[error.start]:#04x}", None, "invalid_json")
    if len(body) <= _EXPLAINED_BYTES:
        try:
            place = _impossible_value(json.loads(body))
        except (ValueError, RecursionError):
            place = None
        if place is not None:
            path, reason = place
            return BodyError(f"{shortened(path)}: {reason}", path or None, "invalid_json")
    reason = message.removeprefix("JSON is malformed: ")
    return BodyError(f"the body is not valid JSON: {reason}", None, "invalid_json")


def _impossible_value(value: Any) -> tuple[str, str] | None:
    """Place of the first value that JSON cannot hold, and why."""
    if isinstance(value, float):
        return None if math.isfinite(value) else ("", f"{value} is not a JSON number")
    if isinstance(value, str):
        return None if value.isascii() or _encodable(value) else ("", "not valid Unicode: contains a lone surrogate")
    if not isinstance(value, (dict, list)):
        return None
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        found = _impossible_value(item)
        if found is not None:
            path, reason = found
            step = f"[{key}]" if isinstance(value, list) else f"{key}"
            return step + ("." if path and not path.startswith("[") else "") + path, reason
    return None


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
