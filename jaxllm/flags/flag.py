"""One option as the command line shows it."""

import dataclasses
from collections.abc import Callable
from typing import Any

from jaxllm.config import OptionInfo
from jaxllm.flags.values import integer, json_object

_VALUES = {int: "int", float: "float", str: "text", tuple: "one or more strings", dict: "JSON object"}


@dataclasses.dataclass(frozen=True)
class Flag:
    """One option as the command line shows it. `kind` is the type of its value, `choices` its values if few.

    With `word`, that text is a value as well; where it `is_optional`, `None` is none given.
    """

    section: str
    name: str
    kind: type
    choices: tuple[Any, ...] | None
    default: Any
    info: OptionInfo
    word: str | None = None
    is_optional: bool = False

    @property
    def flag(self) -> str:
        """`--max-model-len` for `max_model_len`."""
        return "--" + self.name.replace("_", "-")

    @property
    def names(self) -> tuple[str, ...]:
        """The flag and its other names."""
        return (self.flag, *(alias if alias.startswith("-") else f"--{alias}" for alias in self.info.aliases))

    @property
    def bounds(self) -> str:
        """`1 to 256`, `at least 1`, or an empty string."""
        low, high = self.info.minimum, self.info.maximum
        if low is None:
            return "" if high is None else f"at most {high}"
        return f"at least {low}" if high is None else f"{low} to {high}"

    @property
    def values(self) -> str:
        """The accepted values, in a word or two."""
        if self.kind is bool:
            return "on or off"
        if self.choices:
            return ", ".join(f"`{choice}`" for choice in self.choices)
        word = f"`{self.word}` or " if self.word else ""
        return word + (self.bounds or _VALUES[self.kind])

    @property
    def reader(self) -> Callable[[str], Any]:
        """The parser of a text's value; it raises `argparse.ArgumentTypeError`, or `ValueError`."""
        readers: dict[type, Callable[[str], Any]] = {int: integer, dict: json_object}
        read = readers.get(self.kind, self.kind)
        words = {self.word, *self.info.synonyms} - {None}
        if not words and not self.is_optional:
            return read
        return lambda text: None if self.is_optional and text == "None" else text if text in words else read(text)

    @property
    def full_help(self) -> str:
        """The help text with the default, where it is a value, the bounds, and the environment variable."""
        default = f"default: {self.shown_default}" if self.shown_default else ""
        environment = f"or ${self.info.environment}" if self.info.environment else ""
        notes = "; ".join(filter(None, (default, self.bounds, environment)))
        return f"{self.info.help} ({notes})" if notes else self.info.help

    @property
    def shown_default(self) -> str:
        """The default as a person would write it: `on` for True, nothing for None and the empty tuple."""
        if self.default is None or self.default == ():
            return ""
        if self.kind is bool:
            return "on" if self.default else "off"
        return " ".join(self.default) if self.kind is tuple else str(self.default)
