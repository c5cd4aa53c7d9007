"""The base class of all bodies, and marks for fields that are not served, or hold one of several bodies."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, get_type_hints

import msgspec

from jaxllm.errors import RequestError

TEMPLATE_FIELDS = "*"
"""Where `decode` puts fields that a `TemplateBody` does not have, in JSON. No field of an interface has such a name."""


class Body(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A part of a request.

    `elsewhere` has fields that clients of other interfaces put here, with where they belong, for the error.
    """

    elsewhere: ClassVar[Mapping[str, str]] = {}


class TemplateBody(Body, kw_only=True):
    """A part of a request that the chat template sees, with the fields that only the template knows.

    For a kind with `keeps_read`, these are the fields that the server's template reads; for others, all fields.
    """

    keeps_read: ClassVar[bool] = False
    template_fields: dict[str, Any] | None = msgspec.field(name=TEMPLATE_FIELDS, default=None)


def with_template_fields(body: Body) -> dict[str, Any]:
    """The body as a dictionary of what was given, in which the template's own fields, if any, are alongside the
    others.
    """
    plain: dict[str, Any] = msgspec.to_builtins(body)
    more = plain.pop(TEMPLATE_FIELDS, None)
    return {**more, **plain} if more else plain


class Answer(msgspec.Struct, kw_only=True):
    """A part of a response."""


@dataclass(frozen=True)
class Refused:
    """Marks a field, in `Annotated`, which clients may know and which is not served, for this `reason`.

    The values in `allowed`, and null, ask for nothing that is not served, and are accepted.
    """

    reason: str
    allowed: tuple[Any, ...] = ()

    def allows(self, value: Any) -> bool:
        """Whether this value is accepted; 0 and false are different values, as in JSON."""
        return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in self.allowed)


@dataclass(frozen=True)
class Ignored(Refused):
    """Marks a field that is not served either, but without which the answer is still one to the request.

    It is ignored, and the response names it, unless the server is to be strict.
    """


@dataclass(frozen=True, eq=False)
class OneOf:
    """Marks an object, in `Annotated`, that is one of several bodies, by its `type`.

    `default` tells the type of an object that has none; `drop_others`: objects of other types are left out of their
    list, and named in the response, instead of being rejected. `elsewhere` has types of other interfaces that are
    rejected all the same, with what to send.
    """

    kinds: Mapping[str, type[Body]]
    default: Callable[[Mapping[str, Any]], str | None] = lambda _: None
    drop_others: bool = False
    elsewhere: Mapping[str, str] = field(default_factory=dict)

    def kind_of(self, value: Mapping[str, Any]) -> type[Body] | None:
        """The kind of the object; None if it is none of them."""
        name = value.get("type")
        if name is None:
            name = self.default(value)
        return self.kinds.get(name) if isinstance(name, str) else None


@dataclass(frozen=True, eq=False)
class KnownValues:
    """Marks a list of strings, in `Annotated`: all but these are left out, and named in the response."""

    values: tuple[str, ...]


class UnsupportedError(RequestError):
    """A field asks for something that this server knows of and does not do."""


@cache
def refused_fields(kind: type[Body]) -> dict[str, Refused]:
    """The fields of a body that are not served, ignored or rejected."""
    found = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        for note in getattr(hint, "__metadata__", ()):
            if isinstance(note, Refused):
                found[name] = note
    return found
