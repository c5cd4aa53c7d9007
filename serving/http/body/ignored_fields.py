"""What a request asks for and does not get: unknown fields are refused, those that are not served are ignored.

What is ignored is named in a header of the response, and once in the log.
"""

import logging
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from starlette.types import Scope

from jaxllm.errors import nearest, quoted
from jaxllm.serving.http.body.base import (
    Body,
    Ignored,
    KnownValues,
    OneOf,
    Refused,
    UnsupportedError,
    refused_fields,
)
from jaxllm.serving.http.body.client_fields import IN_BODIES, INSIDE
from jaxllm.serving.http.errors import BodyError

logger = logging.getLogger(__name__)

IGNORED = "jaxllm.ignored_fields"
"""Name in the scope of a request: its `IgnoredFields`."""
IGNORED_HEADER = "X-Ignored-Fields"

_MOST_NAMES = 64
"""Most different unknown fields of one request, and most values of one list: each is compared with all known ones."""
_MOST_LOGGED = 256
_LONGEST_NAME = 64
_LONGEST_HEADER = 1024
_TYPO = 0.75
"""How alike an unknown value is to a known one, of which it is taken to be a misspelling; 1 is equal."""


class FieldPolicy:
    """Which fields of a request are ignored, and which refused.

    By default unknown fields are refused, and known ones that are neither served nor essential are ignored, as are
    those that clients of other servers send (`client_fields`).
    """

    def __init__(
        self, *, strict: bool = False, ignore_unknown: bool = False, without_effect: Mapping[str, Ignored] | None = None
    ) -> None:
        """`strict`: nothing is ignored. `ignore_unknown`: unknown fields are ignored.

        `without_effect` are fields of bodies that this server does not serve, though others do.
        """
        self.strict = strict
        self.without_effect = without_effect or {}
        self.ignore_unknown = ignore_unknown
        self._logged: set[str] = set()

    def log(self, name: str) -> None:
        """Say in the log, once, that a field is ignored. Only so many names are logged: clients choose them."""
        self._log("requests have the field %s, which is ignored (--strict-fields refuses it)", name)

    def log_refused(self, name: str) -> None:
        """Say in the log, once, that an unknown field is refused."""
        self._log("requests have the unknown field %s, which is refused (--ignore-unknown-fields ignores it)", name)

    def _log(self, text: str, name: str) -> None:
        if name in self._logged or len(self._logged) >= _MOST_LOGGED:
            return
        self._logged.add(name)
        logger.warning(text, name)


class IgnoredFields:
    """The fields of one request that are ignored."""

    def __init__(self, policy: FieldPolicy) -> None:
        self.strict = policy.strict
        """Whether nothing may be ignored."""
        self.without_effect = policy.without_effect
        self._policy = policy
        self._names: dict[str, None] = {}
        self._unknown: set[tuple[type[Body], str]] = set()

    def add(self, place: str) -> None:
        """Ignore what stands at a place such as `messages[0].name`; names that clients choose are `_shown`."""
        name = _without_places(place)
        if name not in self._names:
            self._names[name] = None
            self._policy.log(name)

    def add_unknown(self, kind: type[Body], name: str, path: str) -> None:
        """Ignore a field that `kind` does not have, at `path`. Raises `BodyError` where it is to be refused."""
        if (kind, name) in self._unknown:
            return
        place = f"{path}.{_shown(name)}" if path else _shown(name)
        if len(self._unknown) == _MOST_NAMES:
            raise BodyError(
                f"more than {_MOST_NAMES} unknown fields, {quoted(place)} among them", place, "unknown_parameter"
            )
        self._unknown.add((kind, name))
        if not self._policy.ignore_unknown and name not in (INSIDE if path else IN_BODIES):
            self._policy.log_refused(_without_places(place))
            hint = nearest(name, kind.__struct_fields__)
            way_out = f"{' A' if hint else '; a'} server with --ignore-unknown-fields ignores it"
            raise BodyError(f"unknown field {quoted(place)}{hint}{way_out}", place, "unknown_parameter")
        self.add(place)

    def add_values(self, values: Mapping[str, int], known: tuple[str, ...], path: str) -> None:
        """Ignore the values, each with its place, of the list at `path`.

        Raises `BodyError` for too many, and for one that is close to a known one, unless what is unknown is ignored.
        """
        _check_number(values, path)
        for name, index in values.items():
            shown = _shown(name)
            if not self._policy.ignore_unknown and len(name) <= _LONGEST_NAME:
                hint = nearest(name, known, alike=_TYPO)
                if hint:
                    place = f"{path}[{index}]={shown}"
                    raise BodyError(f"unknown value {quoted(place)}{hint}", place, "unknown_parameter")
            self.add(f"{path}={shown}")

    def add_types(self, types: Collection[str], path: str) -> None:
        """Ignore objects of these types in the list at `path`. Raises `BodyError` for too many."""
        _check_number(types, f"{path}.type")
        for name in types:
            self.add(f"{path}.type={_shown(name)}")

    def header(self) -> str | None:
        """The value of a header that names them, if there are any."""
        text = ", ".join(self._names)
        return (text if len(text) <= _LONGEST_HEADER else f"{text[: _LONGEST_HEADER - 5]}, ...") or None


def ignored_by(scope: Scope, policy: FieldPolicy) -> IgnoredFields:
    """What becomes known to be ignored of a request; `http.operation` names it in the response."""
    ignored: IgnoredFields = scope.setdefault(IGNORED, IgnoredFields(policy))
    return ignored


def _check_number(values: Collection[str], path: str) -> None:
    if len(values) > _MOST_NAMES:
        raise BodyError(f"{path}: more than {_MOST_NAMES} unknown values", path, "unknown_parameter")


def _without_places(place: str) -> str:
    return re.sub(r"\[\d+\]", "", place)


def _shown(name: str) -> str:
    """A name that a client chose, short and of printable ASCII."""
    text = re.sub(r"[^\x21-\x2b\x2d-\x7e]", "?", name[: _LONGEST_NAME + 1])
    return text if len(text) <= _LONGEST_NAME else f"{text[: _LONGEST_NAME - 3]}..."


@dataclass(frozen=True, kw_only=True)
class Inside:
    """What a field may hold that is to be gone through: an object, or a list of what `items` says."""

    body: type[Body] | None = None
    one_of: OneOf | None = None
    known: KnownValues | None = None
    items: "Inside | None" = None

    def kind_of(self, value: Mapping[str, Any]) -> type[Body] | None:
        """What an object is; None: it is not known."""
        return self.body if self.one_of is None else self.one_of.kind_of(value)

    def drops(self, item: Any) -> bool:
        """Whether an item of a list is of a type that is left out."""
        if self.one_of is None or not self.one_of.drop_others:
            return False
        plain = {"type": item.type} if isinstance(item, Body) else item  # type: ignore[attr-defined]
        return isinstance(plain, dict) and self.one_of.kind_of(plain) is None and isinstance(plain.get("type"), str)


def settle(body: Body, path: str = "", ignored: IgnoredFields | None = None) -> None:
    """Take out of a body, and of all inside it, what is not served, and add it to `ignored`.

    Without `ignored`, or where it is strict, and for what cannot be ignored, raises `UnsupportedError`. `path` is what
    stands before the names of the body's fields in messages.
    """
    marks = refused_fields(type(body))
    if ignored is not None and ignored.without_effect:
        known = body.__struct_fields__
        marks = {name: mark for name, mark in ignored.without_effect.items() if name in known} | marks
    for name, mark in marks.items():
        value = getattr(body, name)
        if value is None or mark.allows(value):
            continue
        if not isinstance(mark, Ignored) or ignored is None or ignored.strict:
            raise UnsupportedError(f"{path}{name}: {mark.reason}", f"{path}{name}")
        ignored.add(f"{path}{name}")
        setattr(body, name, None)
    for name, inside in _fields_inside(type(body)).items():
        value = getattr(body, name)
        if value is not None and not isinstance(value, str):
            _go_through(value, inside, f"{path}{name}", ignored)


def prune(value: Any, kind: type[Body], path: str, ignored: IgnoredFields) -> None:
    """Take out of decoded JSON that is to become `kind` what is unknown or ignored, and add it to `ignored`.

    Raises `BodyError` for a field that is refused.
    """
    if isinstance(value, dict):
        _prune_object(value, kind, path, ignored)


def _go_through(value: Any, inside: Inside, path: str, ignored: IgnoredFields | None) -> None:
    if isinstance(value, Body):
        settle(value, f"{path}.", ignored)
    elif isinstance(value, list):
        if ignored is not None and not ignored.strict:
            _leave_out(value, inside, path, ignored)
        if inside.items is not None:
            for index, item in enumerate(value):
                if isinstance(item, Body):
                    settle(item, f"{path}[{index}].", ignored)
                elif not isinstance(item, str):
                    _go_through(item, inside.items, f"{path}[{index}]", ignored)
    elif isinstance(value, dict) and ignored is not None and not ignored.strict:
        kind = inside.kind_of(value)
        if kind is not None:
            _prune_object(value, kind, path, ignored)


def _prune_object(value: dict[str, Any], kind: type[Body], path: str, ignored: IgnoredFields) -> None:
    known = _names(kind)
    for name in [name for name in value if name not in known]:
        ignored.add_unknown(kind, name, path)
        del value[name]
    before = f"{path}." if path else ""
    for name, mark in _dispensable(kind).items():
        if value.get(name) is not None and not mark.allows(value[name]):
            ignored.add(f"{before}{name}")
            del value[name]
    for name, inside in _fields_inside(kind).items():
        if name in value:
            _go_through(value[name], inside, f"{before}{name}", ignored)


def _leave_out(items: list[Any], inside: Inside, path: str, ignored: IgnoredFields) -> None:
    """Leave out of a list, in place, what is of no type or value that is known."""
    if inside.known is not None:
        known = inside.known.values
        unknown: dict[str, int] = {}
        for index, name in enumerate(items):
            if isinstance(name, str) and name not in known:
                unknown.setdefault(name, index)
        ignored.add_values(unknown, known, path)
        items[:] = [name for name in items if not isinstance(name, str) or name in known]
    elif inside.items is not None and inside.items.one_of is not None and inside.items.one_of.drop_others:
        dropped = filter(inside.items.drops, items)
        types = dict.fromkeys(item.type if isinstance(item, Body) else item["type"] for item in dropped)  # type: ignore[attr-defined]
        ignored.add_types(types, path)
        items[:] = [item for item in items if not inside.items.drops(item)]


@cache
def _names(kind: type[Body]) -> frozenset[str]:
    return frozenset(kind.__struct_fields__)


@cache
def _dispensable(kind: type[Body]) -> dict[str, Refused]:
    return {name: mark for name, mark in refused_fields(kind).items() if isinstance(mark, Ignored)}


@cache
def _fields_inside(kind: type[Body]) -> dict[str, Inside]:
    """The fields of a body that may hold others, or lists with something to leave out."""
    hints = get_type_hints(kind, include_extras=True)
    refused = refused_fields(kind)
    found = {name: _inside(hint) for name, hint in hints.items() if name not in refused}
    return {name: inside for name, inside in found.items() if inside is not None}


def _inside(hint: Any) -> Inside | None:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        inner = _inside(arguments[0])
        for mark in hint.__metadata__:
            if isinstance(mark, OneOf):
                return Inside(one_of=mark)
            if isinstance(mark, KnownValues):
                return Inside(known=mark)
        return inner
    if isinstance(hint, type) and issubclass(hint, Body):
        return Inside(body=hint)
    if origin is list:
        items = _inside(arguments[0])
        return None if items is None else Inside(items=items)
    if origin in (Union, UnionType):
        parts = [part for part in map(_inside, arguments) if part is not None]
        if parts:
            return Inside(**{name: each for part in parts for name, each in vars(part).items() if each is not None})
    return None
