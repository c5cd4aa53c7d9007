"""Definition of an option: a field that carries default, help and bounds, in a section that checks its values."""

import dataclasses
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from jaxllm.errors import ConfigError, nearest


@dataclass(frozen=True)
class OptionInfo:
    """Help, bounds and names of an option, in addition to its type and default."""

    help: str
    minimum: float | None = None
    maximum: float | None = None
    environment: str | None = None
    aliases: tuple[str, ...] = ()
    synonyms: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    hints: tuple[str, ...] = ()
    read: Callable[[Any], Any] | None = None
    shown: bool | None = None

    def value_of(self, value: Any) -> Any:
        """Resolve synonyms of a value; None stands for the default."""
        if isinstance(value, str) or type(value) is int:
            value = self.synonyms.get(str(value), value)
        return value if self.read is None or value is None else self.read(value)

    def may_be_shown(self, value: Any) -> bool:
        """Whether the server may show a value to clients: maps may hold secrets, so they must opt in."""
        if self.shown is not None:
            return self.shown
        return self.environment is None and not isinstance(value, Mapping)

    def is_hint(self, value: Any) -> bool:
        """Whether this is another engine's value, which the default replaces."""
        return isinstance(value, str) and value.lower().replace("-", "_").startswith(self.hints)


def option(
    default: Any,
    help: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    environment: str | None = None,
    aliases: tuple[str, ...] = (),
    synonyms: Mapping[str, str | None] | None = None,
    hints: tuple[str, ...] = (),
    read: Callable[[Any], Any] | None = None,
    shown: bool | None = None,
) -> Any:
    """A dataclass field that is a user-visible option.

    Bounds are inclusive. `environment` names the variable that gives the value when nothing else does: for secrets,
    which a command line would show to everybody on the machine. `aliases` are other names of the flag, with a dash in
    front if they are short ones; `synonyms` other names of values, where None is the default. `hints` are beginnings of
    another engine's values, in lower case: these are accepted with a warning and change nothing. `read` makes the value
    of others that stand for it. `shown` tells whether the server may tell the value: by default, unless it is
    a secret or a map.
    """
    info = OptionInfo(help, minimum, maximum, environment, aliases, synonyms or {}, hints, read, shown)
    return field(default=default, metadata={"option": info})


@dataclass(frozen=True, kw_only=True)
class Section:
    """A frozen group of options that checks its own values."""

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for item in fields(self):
            _check(item.name, getattr(self, item.name), hints[item.name], item.metadata["option"])


def _check(name: str, value: Any, hint: Any, info: OptionInfo) -> None:
    """Raise `ConfigError` unless `value` has the type `hint` and lies within the bounds of `info`."""
    alternatives = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if value is None and type(None) in alternatives:
        return
    choices = next((get_args(each) for each in alternatives if get_origin(each) is Literal), ())
    if value in choices:
        return
    if choices and int not in alternatives:
        hint_text = nearest(str(value), [str(choice) for choice in choices])
        raise ConfigError(f"{name}={value!r}: choose one of {', '.join(map(repr, choices))}{hint_text}")
    containers = tuple(get_origin(each) for each in alternatives if get_origin(each) in (tuple, Mapping))
    if containers:
        _check_container(name, value, containers[0])
        return
    accepted = tuple(each for each in alternatives if isinstance(each, type) and each is not type(None))
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    fits = isinstance(value, accepted) and (not isinstance(value, bool) or bool in accepted)
    if not fits and not (float in accepted and is_number):
        expected = " or ".join([*(each.__name__ for each in accepted), *map(repr, choices)])
        raise ConfigError(f"{name}={value!r}: expected {expected}")
    if is_number:
        low, high = info.minimum, info.maximum
        # Written so that NaN fails.
        if not ((low is None or value >= low) and (high is None or value <= high)):
            bounds = f"at least {low}" if high is None else f"at most {high}" if low is None else f"{low} to {high}"
            raise ConfigError(f"{name}={value}: must be {bounds}")


def _check_container(name: str, value: Any, kind: Any) -> None:
    """Raise `ConfigError` unless `value` is a tuple of texts, or a dictionary with texts as keys."""
    if not isinstance(value, kind) or not all(isinstance(item, str) for item in value):
        expected = "a list of strings" if kind is tuple else "a mapping from strings to values"
        raise ConfigError(f"{name}={value!r}: expected {expected}")
