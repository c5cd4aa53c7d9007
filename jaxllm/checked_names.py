"""Structs whose constructor says which name was wrong, and which one is near."""

from collections.abc import Iterable
from typing import Any, ClassVar

import msgspec

from jaxllm import tracebacks
from jaxllm.errors import RequestError, nearest


def repr_of_changes(struct: msgspec.Struct) -> str:
    """The call that makes an equal struct: only the fields that differ from their defaults."""
    kind = type(struct)
    values = {field.name: (getattr(struct, field.name), field.default) for field in msgspec.structs.fields(kind)}
    changed = [f"{name}={value!r}" for name, (value, default) in values.items() if value != default]
    return f"{kind.__name__}({', '.join(changed)})"


class CheckedNames(msgspec.StructMeta):
    """Turns an unknown keyword of the constructor into a `RequestError` that names the nearest known one.

    `noun` says what the fields are called; `reasons` are for names that other engines know.
    """

    noun: ClassVar[str] = "parameter"
    reasons: ClassVar[dict[str, str]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Make an object. Raises `RequestError` for an unknown name."""
        try:
            for name in kwargs:
                if name not in self.__struct_fields__:
                    raise RequestError(self._unknown(name, self.__struct_fields__), name)
            return super().__call__(*args, **kwargs)
        except RequestError as error:
            if tracebacks.are_full():
                raise
            found = tracebacks.without_internals(error)
        raise found

    def _unknown(self, name: str, known: Iterable[str]) -> str:
        reason = self.reasons.get(name)
        return f"{name}: {reason}" if reason else f"unknown {self.noun} {name!r}{nearest(name, known)}"
