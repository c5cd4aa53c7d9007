"""What all bodies share: unknown fields are errors, and known fields that are not served say why."""

from dataclasses import dataclass
from functools import cache
from typing import Any, get_type_hints

import msgspec

from jaxllm.errors import RequestError


class Body(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A part of a request."""


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


class UnsupportedError(RequestError):
    """A field asks for something that this server knows of and does not do."""


@cache
def refused_fields(kind: type[Body]) -> dict[str, Refused]:
    """The fields of a body that are not served."""
    found = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        for note in getattr(hint, "__metadata__", ()):
            if isinstance(note, Refused):
                found[name] = note
    return found


def refuse_unsupported(body: Body, path: str = "") -> None:
    """Raise `UnsupportedError` if the body, or one inside it, asks for what is not served.

    `path` is what stands before the names of its fields in messages.
    """
    refused = refused_fields(type(body))
    for name in body.__struct_fields__:
        value = getattr(body, name)
        if value is None:
            continue
        reason = refused.get(name)
        if reason is not None:
            if not reason.allows(value):
                raise UnsupportedError(f"{path}{name}: {reason.reason}", f"{path}{name}")
        elif isinstance(value, Body):
            refuse_unsupported(value, f"{path}{name}.")
        elif isinstance(value, list) and value and isinstance(value[0], (Body, str)):
            # Texts and bodies may be mixed. Lists of numbers are long, and hold no bodies.
            for index, item in enumerate(value):
                if isinstance(item, Body):
                    refuse_unsupported(item, f"{path}{name}[{index}].")
