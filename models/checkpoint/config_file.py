"""Typed reading of a JSON configuration, with errors that name the file and the key."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from jaxllm.models.errors import ModelError

MAX_BYTES = 256 * 2**20
"""Maximum size of a file; the index of a checkpoint with many experts has tens of megabytes."""
MOST = {"num_hidden_layers": 10_000, "num_labels": 1_000_000, "group_size": 65_536}
"""Bounds of options that say how long something becomes."""


class ConfigFile:
    """A JSON object and the place it came from.

    Every getter raises `ModelError` when the value has the wrong type or, without a default, is missing. A null counts
    as missing, as in Hugging Face's configurations. What was looked at is remembered, for `check_all_used`.
    """

    def __init__(self, values: Mapping[str, Any], source: str = "config.json") -> None:
        self.values = values
        self.source = source
        self._own = self
        self._names: Mapping[str, str] = {}
        self._known: frozenset[str] = frozenset()
        self._used: set[str] = set()
        self._sections: dict[str, ConfigFile] = {}

    @classmethod
    def read(cls, path: Path) -> "ConfigFile":
        """Read the JSON object in the file `path`."""
        try:
            size = path.stat().st_size
            if size > MAX_BYTES:
                raise ModelError(f"{path}: {size} bytes; at most {MAX_BYTES} are supported")
            values = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ModelError(f"{path}: cannot read it ({error.strerror})") from None
        except UnicodeDecodeError as error:
            raise ModelError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from None
        except ModelError:
            raise
        except json.JSONDecodeError as error:
            raise ModelError(f"{path}: invalid JSON at line {error.lineno}: {error.msg}") from None
        except ValueError:
            raise ModelError(f"{path}: a number has too many digits") from None
        except RecursionError:
            raise ModelError(f"{path}: JSON nested too deeply") from None
        if not isinstance(values, dict):
            raise ModelError(f"{path}: expected a JSON object, found {_kind(values)}")
        return cls(values, str(path))

    def reading(self, names: Mapping[str, str] | None = None, /, **defaults: Any) -> "ConfigFile":
        """The same file as a family reads it: keys are found under the `names` given for them, too.

        A key that is not there has its default of `defaults`; one that is null has not.
        """
        spelled = {ours: self.values[theirs] for ours, theirs in (names or {}).items() if theirs in self.values}
        view = ConfigFile({**defaults, **self.values, **spelled}, self.source)
        new = {ours: theirs for ours, theirs in (names or {}).items() if ours in spelled}
        view._own, view._names = self, {**self._names, **new}
        view._used, view._sections = self._used, self._sections
        view._known = self._known.union(defaults, names or ())
        return view

    def but(self, **values: Any) -> "ConfigFile":
        """The same file as if these keys had other values."""
        view = self.reading()
        view.values = {**self.values, **values}
        return view

    def ignore(self, *keys: str) -> None:
        """Take note that these, which may be patterns, change nothing."""
        self._used.update(key for key in self._own.values if _is_like(key, keys))

    def expect(self, **values: Any) -> None:
        """Take note of options that change nothing with these values. Raise `ModelError` where one has another."""
        for key, value in values.items():
            if self.has(key) and self._value(key) != value:
                raise self.wrong(key, json.dumps(value))
        self.ignore(*values)

    def check_all_used(self, irrelevant: Sequence[str]) -> None:
        """Raise `ModelError` for an option that nobody looked at, see `unused`."""
        for key, value in self._own_unused(irrelevant):
            raise ModelError(
                f"{self.source}: option {key!r} = {json.dumps(value)[:80]} is unknown for this architecture, and "
                "may change what the model computes; if it does not, remove it from the file"
            )
        for section in self._sections.values():
            section.check_all_used(irrelevant)

    def unused(self, irrelevant: Sequence[str]) -> Iterator[tuple[str, Any]]:
        """Options that nobody looked at, with their values; those of sections as "section.option".

        Those whose name is like one of `irrelevant` are left out, and those that are null, false, zero or empty, which
        are taken to be switched off.
        """
        yield from self._own_unused(irrelevant)
        for name, section in self._sections.items():
            yield from ((f"{name}.{key}", value) for key, value in section.unused(irrelevant))

    def _own_unused(self, irrelevant: Sequence[str]) -> Iterator[tuple[str, Any]]:
        for key, value in self._own.values.items():
            if value and key not in self._used and not _is_like(key, irrelevant):
                yield key, value

    def is_known(self, key: str) -> bool:
        """Whether the family gives the key a default, or a name of its own."""
        return key in self._known

    def has(self, key: str) -> bool:
        """Whether the key is there and not null."""
        return self._value(key) is not None

    def integer(self, key: str, default: int | None = None, *, minimum: int = 1) -> int:
        """An integer of at least `minimum`."""
        value = self._get(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.wrong(key, "an integer")
        if value < minimum:
            raise self.wrong(key, f"at least {minimum}")
        if value > MOST.get(key, value):
            raise self.wrong(key, f"at most {MOST[key]}")
        return value

    def optional_integer(self, key: str, default: int | None = None, *, minimum: int = 1) -> int | None:
        """An integer, the default when the key is missing, or None when it is null."""
        if key in self.values and self._value(key) is None:
            return None
        return self.integer(key, default, minimum=minimum) if self.has(key) else default

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number."""
        value = self._get(key, default)
        if not _is_finite(value):
            raise self.wrong(key, "a finite number")
        return float(value)

    def positive(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self.number(key, default)
        if value <= 0:
            raise self.wrong(key, "a number above 0")
        return value

    def optional_number(self, key: str) -> float | None:
        """A finite number, or None when the key is missing or null."""
        return self.number(key) if self.has(key) else None

    def boolean(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, "a string")
        return value

    def texts(self, key: str) -> list[str]:
        """A list of strings."""
        value = self._get(key, None)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.wrong(key, "a list of strings")
        return value

    def numbers(self, key: str) -> list[float]:
        """A list of finite numbers."""
        value = self._get(key, None)
        if not isinstance(value, list) or not all(_is_finite(item) for item in value):
            raise self.wrong(key, "a list of finite numbers")
        return [float(item) for item in value]

    def array(self, key: str, default: list[Any]) -> list[Any]:
        """A list of anything."""
        value = self._get(key, default)
        if not isinstance(value, list):
            raise self.wrong(key, "a list")
        return value

    def integers(self, key: str) -> list[int]:
        """A list of integers, empty when it is missing."""
        value = self._value(key) or []
        if not isinstance(value, list) or not all(
            isinstance(item, int) and not isinstance(item, bool) for item in value
        ):
            raise self.wrong(key, "a list of integers")
        return value

    def token_ids(self, key: str, default: int | None = None) -> tuple[int, ...]:
        """One token id or a list of them; the default when the key is missing, empty when it is null."""
        value = self._value(key, default)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if not all(isinstance(item, int) and not isinstance(item, bool) for item in ids):
            raise self.wrong(key, "a token id or a list of token ids")
        return tuple(dict.fromkeys(item for item in ids if item >= 0))

    def section(self, key: str) -> "ConfigFile | None":
        """A nested object, or None when the key is missing, null or empty."""
        value = self._value(key)
        if not value:
            return None
        if not isinstance(value, dict):
            raise self.wrong(key, "an object")
        # One for all who ask, so that it is known what any of them looked at.
        found = self._sections.get(key)
        if found is None or found.values != value:
            found = self._sections[key] = ConfigFile(value, f"{self.source}: {self._name(key)}")
        return found

    def wrong(self, key: str, expected: str) -> ModelError:
        """The error for a value that cannot be used; `expected` says what would be."""
        return ModelError(
            f"{self.source}: {self._name(key)!r} must be {expected}, found {json.dumps(self._value(key))[:200]}"
        )

    def _get(self, key: str, default: Any) -> Any:
        value = self._value(key)
        if value is None:
            value = default
        if value is None:
            raise ModelError(f"{self.source}: {self._name(key)!r} is missing")
        return value

    def _value(self, key: str, default: Any = None) -> Any:
        self._used.update((key, self._name(key)))
        return self.values.get(key, default)

    def _name(self, key: str) -> str:
        """As the file spells it."""
        return self._names.get(key, key)


def _is_finite(value: object) -> bool:
    """Whether a value is a number that a float holds."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    # One with more digits than floats have cannot be asked.
    return abs(value) < 1e300 if isinstance(value, int) else math.isfinite(value)


def _kind(value: object) -> str:
    return {list: "a list", str: "a string", bool: "a boolean"}.get(type(value), "a number or null")


def _is_like(key: str, patterns: Sequence[str]) -> bool:
    """Whether a key is one of them. Most are plain names: making an expression of each takes longer than the rest."""
    return key in patterns or any("*" in pattern and fnmatchcase(key, pattern) for pattern in patterns)


def quantization_of(file: ConfigFile) -> ConfigFile | None:
    """What a configuration says of quantized matrices; Kimi-K2.5's says it of its language model."""
    # The second is what compressed-tensors once wrote.
    parts = (file, file.section("text_config"))
    keys = ("quantization_config", "compression_config")
    return next((found for part in parts if part is not None for key in keys if (found := part.section(key))), None)
