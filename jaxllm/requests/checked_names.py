"""Structs whose constructor says which name was wrong, and which one is near."""

from collections.abc import Iterable
from typing import Any, ClassVar

import msgspec

from jaxllm.errors import RequestError, full_tracebacks, nearest, quoted, without_internals


def repr_of_changes(struct: msgspec.Struct) -> str:
    """The call that makes an equal struct: only the fields that differ from their defaults."""
    kind = type(struct)
    values = {field.name: (getattr(struct, field.name), field.default) for field in msgspec.structs.fields(kind)}
    changed = [f"{name}={value!r}" for name, (value, default) in values.items() if value != default]
    return f"{kind.__name__}({', '.join(changed)})"


class CheckedNames(msgspec.StructMeta):
    """Turns an unknown keyword of the constructor into a `RequestError` that names the nearest known one.

    `noun` says what the fields are called; `reasons` are for names that other engines know. `synonyms` are other names
    of fields. `neutral` are names of what there is not, with the values that ask for nothing: they are dropped.
    """

    noun: ClassVar[str] = "parameter"
    reasons: ClassVar[dict[str, str]] = {}
    synonyms: ClassVar[dict[str, str]] = {}
    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {}

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Make an object. Raises `RequestError` for an unknown name."""
        try:
            if any(name not in self.__struct_fields__ for name in kwargs):
                kwargs = self._translated(kwargs)
            return super().__call__(*args, **kwargs)
        except RequestError as error:
            if full_tracebacks():
                raise
            found = without_internals(error)
        raise found

    def _translated(self, given: dict[str, Any]) -> dict[str, Any]:
        """`given` under the names of fields. Raises `RequestError` for what has none."""
        found = {}
        for name, value in given.items():
            ours = self.synonyms.get(name, name)
            if ours in self.__struct_fields__:
                if ours != name and given.get(ours) is not None:
                    raise RequestError(f"{name}: a synonym of {ours}; give only one of them", name)
                found[ours] = value
            elif name not in self.neutral:
                raise RequestError(self._unknown(name, self.__struct_fields__), name)
            elif not any(value is each or value == each for each in self.neutral[name]):
                reason = self.reasons.get(name, "not supported")
                raise RequestError(f"{name}={quoted(value)}: {reason}", name)
        return found

    def _unknown(self, name: str, known: Iterable[str]) -> str:
        reason = self.reasons.get(name)
        return f"{name}: {reason}" if reason else f"unknown {self.noun} {quoted(name)}{nearest(name, known)}"
