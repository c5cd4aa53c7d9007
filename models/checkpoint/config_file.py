"""Typed reading of a JSON configuration, with errors that name the file and the key."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxllm.models.errors import ModelError


class ConfigFile:
    """A JSON object and the place it came from.

    Every getter raises `ModelError` when the value has the wrong type or, without a default, is missing. A null counts
    as missing, as in Hugging Face's configurations.
    """

    def __init__(self, values: Mapping[str, Any], source: str = "config.json") -> None:
        self.values = values
        self.source = source

    @classmethod
    def read(cls, path: Path) -> "ConfigFile":
        """Read the JSON object in the file `path`."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ModelError(f"{path}: cannot be read ({error.strerror})") from None
        except UnicodeDecodeError as error:
            raise ModelError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from None
        except json.JSONDecodeError as error:
            raise ModelError(f"{path}: broken JSON at line {error.lineno}: {error.msg}") from None
        if not isinstance(values, dict):
            raise ModelError(f"{path}: expected a JSON object, found {_kind(values)}")
        return cls(values, str(path))

    def has(self, key: str) -> bool:
        """Whether the key is there and not null."""
        return self.values.get(key) is not None

    def integer(self, key: str, default: int | None = None, *, minimum: int = 1) -> int:
        """An integer of at least `minimum`."""
        value = self._get(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.wrong(key, "an integer")
        if value < minimum:
            raise self.wrong(key, f"at least {minimum}")
        return value

    def optional_integer(self, key: str, default: int | None = None, *, minimum: int = 1) -> int | None:
        """An integer, the default when the key is missing, or None when it is null."""
        if key in self.values and self.values[key] is None:
            return None
        return self.integer(key, default, minimum=minimum) if self.has(key) else default

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number."""
        value = self._get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise self.wrong(key, "a finite number")
        return float(value)

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

    def token_ids(self, key: str, default: int | None = None) -> tuple[int, ...]:
        """One token id or a list of them; the default when the key is missing, empty when it is null."""
        value = self.values.get(key, default)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if not all(isinstance(item, int) and not isinstance(item, bool) for item in ids):
            raise self.wrong(key, "a token id or a list of token ids")
        return tuple(dict.fromkeys(item for item in ids if item >= 0))

    def section(self, key: str) -> "ConfigFile | None":
        """A nested object, or None when the key is missing, null or empty."""
        value = self.values.get(key)
        if not value:
            return None
        if not isinstance(value, dict):
            raise self.wrong(key, "an object")
        return ConfigFile(value, f"{self.source}: {key}")

    def wrong(self, key: str, expected: str) -> ModelError:
        """The error for a value that cannot be used; `expected` says what would be."""
        return ModelError(f"{self.source}: {key!r} must be {expected}, found {json.dumps(self.values.get(key))}")

    def _get(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        if value is None:
            value = default
        if value is None:
            raise ModelError(f"{self.source}: {key!r} is missing")
        return value


def _kind(value: object) -> str:
    return {list: "a list", str: "a string", bool: "a boolean"}.get(type(value), "a number or null")
