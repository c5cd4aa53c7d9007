"""Taking out of bodies what is ignored, and putting fields for the chat template where it finds them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from jaxllm.serving.http.body.base import (
    TEMPLATE_FIELDS,
    Body,
    Ignored,
    KnownValues,
    OneOf,
    Refused,
    TemplateBody,
    UnsupportedError,
    refused_fields,
)
from jaxllm.serving.http.body.ignored_fields import INSIDE, IgnoredFields
from jaxllm.serving.http.body.misspelling import misspelt


@dataclass(frozen=True, kw_only=True)
class Inside:
    """What a field may hold that is to be gone through: an object, or a list of what `items` says."""

    body: type[Body] | None = None
    one_of: OneOf | None = None
    known: KnownValues | None = None
    items: "Inside | None" = None

    def kind_of(self, value: Mapping[str, Any]) -> type[Body] | None:
        """The kind of an object; None if it is unknown."""
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


def prune(value: Any, kind: type[Body], path: str, ignored: IgnoredFields | None) -> None:
    """Take out of decoded JSON that is to become `kind` what is unknown or ignored, and add it to `ignored`.

    Fields for the chat template go where a `TemplateBody` has them; without `ignored`, that is all. Raises `BodyError`
    for a field that is rejected.
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
    elif isinstance(value, dict) and (ignored is None or not ignored.strict):
        kind = inside.kind_of(value)
        if kind is not None:
            _prune_object(value, kind, path, ignored)


def _prune_object(value: dict[str, Any], kind: type[Body], path: str, ignored: IgnoredFields | None) -> None:
    known = _names(kind)
    unknown = [name for name in value if name not in known]
    if unknown and issubclass(kind, TemplateBody):
        unknown = _keep_for_template(value, unknown, kind, ignored)
    before = f"{path}." if path else ""
    if ignored is not None:
        for name in unknown:
            ignored.add_unknown(kind, name, path)
            del value[name]
        for name, mark in _dispensable(kind).items():
            if value.get(name) is not None and not mark.allows(value[name]):
                ignored.add(f"{before}{name}")
                del value[name]
    for name, inside in _fields_inside(kind).items():
        if name in value:
            _go_through(value[name], inside, f"{before}{name}", ignored)


def _keep_for_template(
    value: dict[str, Any], unknown: list[str], kind: type[TemplateBody], ignored: IgnoredFields | None
) -> list[str]:
    """Put unknown fields of an object where the chat template finds them; those that no template needs are returned."""
    left = []
    kept = {}
    for name in unknown:
        if _is_for_template(kind, name, ignored):
            kept[name] = value.pop(name)
        else:
            left.append(name)
    if kept:
        value[TEMPLATE_FIELDS] = kept
    return left


def _is_for_template(kind: type[TemplateBody], name: str, ignored: IgnoredFields | None) -> bool:
    if kind.keeps_read:
        return ignored is not None and name in ignored.of_template
    if ignored is None:
        return not misspelt(kind, name)
    return (name not in INSIDE or name in ignored.of_template) and not ignored.refuses(kind, name)


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
        ignored.add_types(types, path, inside.items.one_of.elsewhere)
        items[:] = [item for item in items if not inside.items.drops(item)]


@cache
def _names(kind: type[Body]) -> frozenset[str]:
    # An object that was gone through before has its fields for the template in place.
    return frozenset(kind.__struct_encode_fields__)


@cache
def _dispensable(kind: type[Body]) -> dict[str, Refused]:
    return {name: mark for name, mark in refused_fields(kind).items() if isinstance(mark, Ignored)}


@cache
def _fields_inside(kind: type[Body]) -> dict[str, Inside]:
    """The fields of a body that may hold others, or lists with something to leave out."""
    hints = get_type_hints(kind, include_extras=True)
    refused = refused_fields(kind)
    found = {name: _inner_hint(hint) for name, hint in hints.items() if name not in refused}
    return {name: inside for name, inside in found.items() if inside is not None}


def _inner_hint(hint: Any) -> Inside | None:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        inner = _inner_hint(arguments[0])
        for mark in hint.__metadata__:
            if isinstance(mark, OneOf):
                return Inside(one_of=mark)
            if isinstance(mark, KnownValues):
                return Inside(known=mark)
        return inner
    if isinstance(hint, type) and issubclass(hint, Body):
        return Inside(body=hint)
    if origin is list:
        items = _inner_hint(arguments[0])
        return None if items is None else Inside(items=items)
    if origin in (Union, UnionType):
        parts = [part for part in map(_inner_hint, arguments) if part is not None]
        if parts:
            return Inside(**{name: each for part in parts for name, each in vars(part).items() if each is not None})
    return None
