"""Flags made from option sections (`jaxllm.config.Section`), first of all those of the engine."""

import argparse
import dataclasses
import types
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from jaxllm.compat.vllm.options import NOOP_OPTIONS, TRANSLATED, NoopOption
from jaxllm.config import EngineConfig, Section
from jaxllm.flags.actions import Ignore, Objects, Texts, Translate
from jaxllm.flags.flag import Flag

LONGEST_LIST = 60
"""Columns that the values of an option may take where help shows its flag."""

_METAVARS = {int: "INT", float: "FLOAT", str: "TEXT", tuple: "TEXT", dict: "JSON"}


def section_flags(section: str, options: type[Section]) -> Iterator[Flag]:
    """Yield the flag of every option of one section, in the order of declaration."""
    hints = get_type_hints(options)
    for item in dataclasses.fields(options):
        kind, choices, word = _kind(hints[item.name])
        is_optional = type(None) in get_args(hints[item.name])
        yield Flag(section, item.name, kind, choices, item.default, item.metadata["option"], word, is_optional)


def engine_sections() -> dict[str, type[Section]]:
    """The sections of `EngineConfig` by name."""
    return {item.name: item.default_factory for item in dataclasses.fields(EngineConfig)}  # type: ignore[misc]


def engine_flags() -> Iterator[Flag]:
    """Yield the flag of every option of the engine, in the order of declaration."""
    for name, options in engine_sections().items():
        yield from section_flags(name, options)


def add_engine_flags(
    parser: argparse.ArgumentParser,
    meaningless: Mapping[str, NoopOption] = NOOP_OPTIONS,
    left_out: Container[str] = (),
) -> None:
    """Add a flag for every option of `EngineConfig` not `left_out`, grouped by section, and flags without effect.

    Flags that are not given leave no trace in the namespace; read the others with `explicit_options`.
    """
    for name, options in engine_sections().items():
        flags = (flag for flag in section_flags(name, options) if flag.name not in left_out)
        add_flags(parser, name, summary(options), flags)
    for name, known in meaningless.items():
        parser.add_argument(
            *(f"--{name}", f"--no-{name}", *([f"-{known.short}"] if known.short else [])),
            action=Ignore,
            known=known,
            nargs=known.nargs,
            dest=argparse.SUPPRESS,
            default=argparse.SUPPRESS,
            help=argparse.SUPPRESS,
        )
    for name, translated in TRANSLATED.items():
        parser.add_argument(
            *(f"--{name}", f"--no-{name}", *([f"-{translated.short}"] if translated.short else [])),
            action=Translate,
            nargs=None if translated.takes_value else 0,
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
        add(action=Texts, nargs="+", metavar=_METAVARS[tuple])
    elif flag.choices:
        listed = f"{{{','.join(map(str, flag.choices))}}}"
        # Help repeats what stands for the value after every name of the flag. Values of others are too many to list:
        # the option checks them.
        add(
            type=flag.reader,
            choices=None if flag.info.hints else (*flag.choices, *flag.info.synonyms, *[None] * flag.is_optional),
            metavar=listed if len(listed) <= LONGEST_LIST else _METAVARS[str],
        )
    else:
        action = Objects if flag.kind is dict else "store"
        add(action=action, type=flag.reader, metavar=f"{_METAVARS[flag.kind]}{f'|{flag.word}' if flag.word else ''}")


def explicit_options(args: argparse.Namespace, flags: Iterable[Flag] | None = None) -> dict[str, Any]:
    """The options given on the command line, of the engine (for `EngineConfig.from_options`) unless `flags` says."""
    wanted = engine_flags() if flags is None else flags
    return {flag.name: getattr(args, flag.name) for flag in wanted if hasattr(args, flag.name)}


def summary(options: type[Section]) -> str:
    """The subject of a section: the first line of its docstring."""
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
