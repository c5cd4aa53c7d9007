"""Command-line flags made from option sections (`jaxllm.config.Section`), first of all those of the engine."""

import argparse
import dataclasses
import json
import sys
import types
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from jaxllm.config import EngineConfig, OptionInfo, Section
from jaxllm.errors import nearest
from jaxllm.foreign import MEANINGLESS, Meaningless

LONGEST_LIST = 60
"""Columns that the values of an option may take where help shows its flag."""

_METAVARS = {int: "INT", float: "FLOAT", str: "TEXT", tuple: "TEXT", dict: "JSON"}
_VALUES = {int: "int", float: "float", str: "text", tuple: "one or more texts", dict: "JSON object"}
_MULTIPLIERS = {"k": 10**3, "K": 2**10, "m": 10**6, "M": 2**20, "g": 10**9, "G": 2**30}


def integer(text: str) -> int:
    """Read an int, also as vLLM writes large ones: `8k` is 8000 and `8K` is 8192; likewise m, M, g, G."""
    multiplier = _MULTIPLIERS.get(text[-1:], 1)
    digits = text if multiplier == 1 else text[:-1]
    try:
        return round(float(digits) * multiplier) if multiplier != 1 else int(digits)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def json_object(text: str) -> dict[str, Any]:
    """Read a JSON object."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"""{text!r} is not a JSON object such as '{{"name": true}}'""")
    return value


class FlagParser(argparse.ArgumentParser):
    """An argument parser whose errors are one line on stderr (exit code 2) and name the nearest known flag."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse strictly. Flags may be written with underscores, as vLLM allows."""
        args, unknown = self.parse_known_args(_with_dashes(arguments))
        if unknown:
            name = unknown[0].partition("=")[0]
            if name.startswith("-"):
                self.error(f"unknown flag {name}{nearest(name, self._option_string_actions)}")
            self.error(f"unexpected argument {name!r}")
        return args

    def error(self, message: str) -> Any:
        """Print `message` on one line and exit with code 2."""
        self.exit(2, f"{self.prog}: {message}\n")


class _Ignore(argparse.Action):
    """Says that the flag has no effect, and goes on; refuses a value that would have one."""

    def __init__(self, option_strings: Sequence[str], dest: str, *, known: Meaningless, **settings: Any) -> None:
        super().__init__(option_strings, dest, **settings)
        self._known = known

    def __call__(self, parser: argparse.ArgumentParser, _namespace: Any, values: Any, flag: str | None = None) -> None:
        value = values if self._known.takes_value else not str(flag).startswith("--no-")
        if not self._known.accepts(value):
            parser.error(f"{f'{flag} {value}' if self._known.takes_value else flag}: {self._known.reason}")
        if self._known.neutral is None:
            sys.stderr.write(f"{parser.prog}: {flag} has no effect: {self._known.reason}\n")


class _Texts(argparse.Action):
    """Collects the texts of `--flag a b --flag c`; a JSON list, as vLLM wants for some flags, counts as its items."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, flag: str | None = None) -> None:
        found = list(getattr(namespace, self.dest, ()))
        for value in values:
            items = _json_list(value)
            if not all(isinstance(item, str) for item in items):
                parser.error(f"argument {flag}: {value} is not a list of texts")
            found += items
        setattr(namespace, self.dest, tuple(found))


def _json_list(text: str) -> list[Any]:
    """The items of a JSON list; any other text is one item."""
    if text.startswith("[") and text.endswith("]"):
        try:
            return list(json.loads(text))
        except ValueError:
            return [text]
    return [text]


@dataclasses.dataclass(frozen=True)
class Flag:
    """One option as the command line shows it. `kind` is the type of its value, `choices` its values if few.

    With `word`, that text is a value as well.
    """

    section: str
    name: str
    kind: type
    choices: tuple[Any, ...] | None
    default: Any
    info: OptionInfo
    word: str | None = None

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
        """What may be given, in a word or two."""
        if self.kind is bool:
            return "on or off"
        if self.choices:
            return ", ".join(f"`{choice}`" for choice in self.choices)
        word = f"`{self.word}` or " if self.word else ""
        return word + (self.bounds or _VALUES[self.kind])

    @property
    def reader(self) -> Callable[[str], Any]:
        """What makes the value of a text; it raises `argparse.ArgumentTypeError`, or `ValueError`."""
        readers: dict[type, Callable[[str], Any]] = {int: integer, dict: json_object}
        read = readers.get(self.kind, self.kind)
        return read if self.word is None else lambda text: text if text == self.word else read(text)

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


def section_flags(section: str, options: type[Section]) -> Iterator[Flag]:
    """Yield the flag of every option of one section, in the order of declaration."""
    hints = get_type_hints(options)
    for item in dataclasses.fields(options):
        kind, choices, word = _kind(hints[item.name])
        yield Flag(section, item.name, kind, choices, item.default, item.metadata["option"], word)


def engine_sections() -> dict[str, type[Section]]:
    """The sections of `EngineConfig` by name."""
    return {item.name: item.default_factory for item in dataclasses.fields(EngineConfig)}  # type: ignore[misc]


def engine_flags() -> Iterator[Flag]:
    """Yield the flag of every option of the engine, in the order of declaration."""
    for name, options in engine_sections().items():
        yield from section_flags(name, options)


def add_engine_flags(
    parser: argparse.ArgumentParser,
    meaningless: Mapping[str, Meaningless] = MEANINGLESS,
    left_out: Container[str] = (),
) -> None:
    """Add a flag for every option of `EngineConfig` not `left_out`, grouped by section, and flags without effect.

    Flags that are not given leave no trace in the namespace; read the others with `given_options`.
    """
    for name, options in engine_sections().items():
        flags = (flag for flag in section_flags(name, options) if flag.name not in left_out)
        add_flags(parser, name, summary(options), flags)
    for name, known in meaningless.items():
        parser.add_argument(
            *(f"--{name}", f"--no-{name}", *([f"-{known.short}"] if known.short else [])),
            action=_Ignore,
            known=known,
            nargs=None if known.takes_value else 0,
            dest=argparse.SUPPRESS,
            default=argparse.SUPPRESS,
            help=argparse.SUPPRESS,
        )


def add_section_flags(parser: argparse.ArgumentParser, section: str, options: type[Section]) -> None:
    """Add a flag for every option of a section, under a heading of their own."""
    add_flags(parser, section, summary(options), section_flags(section, options))


def add_flags(parser: argparse.ArgumentParser, section: str, about: str, flags: Iterable[Flag]) -> None:
    """Add these flags under a heading of their own."""
    group = parser.add_argument_group(f"{section} options", about)
    for flag in flags:
        _add_flag(group, flag)


def _add_flag(group: argparse._ArgumentGroup, flag: Flag) -> None:
    add: Callable[..., Any] = partial(
        group.add_argument,
        *flag.names,
        dest=flag.name,
        default=argparse.SUPPRESS,
        help=flag.full_help.replace("%", "%%"),
    )
    if flag.kind is bool:
        add(action=argparse.BooleanOptionalAction)
    elif flag.kind is tuple:
        add(action=_Texts, nargs="+", metavar=_METAVARS[tuple])
    elif flag.choices:
        listed = f"{{{','.join(map(str, flag.choices))}}}"
        # Help repeats what stands for the value behind every name of the flag.
        add(
            type=flag.kind,
            choices=(*flag.choices, *flag.info.synonyms),
            metavar=listed if len(listed) <= LONGEST_LIST else _METAVARS[str],
        )
    else:
        add(type=flag.reader, metavar=f"{_METAVARS[flag.kind]}{f'|{flag.word}' if flag.word else ''}")


def given_options(args: argparse.Namespace, flags: Iterable[Flag] | None = None) -> dict[str, Any]:
    """The options given on the command line, of the engine (for `EngineConfig.from_options`) unless `flags` says."""
    wanted = engine_flags() if flags is None else flags
    return {flag.name: getattr(args, flag.name) for flag in wanted if hasattr(args, flag.name)}


def summary(options: type[Section]) -> str:
    """What a section is about: the first line of its docstring."""
    return (options.__doc__ or "").strip().splitlines()[0]


def _kind(hint: Any) -> tuple[type, tuple[Any, ...] | None, str | None]:
    """The type of a value, for a `Literal` its choices, and the word of a number that may be one word instead.

    `X | None` counts as X.
    """
    alternatives = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    found, *others = sorted((each for each in alternatives if each is not type(None)), key=lambda each: each is not int)
    if get_origin(found) is Literal:
        choices = get_args(found)
        return type(choices[0]), choices, None
    containers = {tuple: tuple, Mapping: dict}
    if get_origin(found) in containers:
        return containers[get_origin(found)], None, None
    assert found in (bool, int, float, str), f"no flag can be made from {hint}"
    words = [word for each in others for word in get_args(each)]
    assert len(words) <= 1, f"no flag can be made from {hint}"
    return found, None, words[0] if words else None


def _with_dashes(arguments: Sequence[str]) -> list[str]:
    """`--max_model_len=8` as `--max-model-len=8`; values, and whatever follows `--`, stay as they are."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    result = list(arguments)
    for index, argument in enumerate(arguments[:end]):
        if argument.startswith("--"):
            name, equals, value = argument.partition("=")
            result[index] = name.replace("_", "-") + equals + value
    return result
