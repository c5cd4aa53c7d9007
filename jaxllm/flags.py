"""Command-line flags made from the options in `jaxllm.config`, and the page that lists them.

`python -m jaxllm.flags docs/flags.md` writes the page; with `--check` it only compares.
"""

import argparse
import dataclasses
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from jaxllm.config import EngineConfig, OptionInfo, option_fields
from jaxllm.errors import nearest


class Meaningless(NamedTuple):
    """A flag of vLLM's that jaxllm accepts, so that a command line can be carried over, and that changes nothing."""

    takes_value: bool
    reason: str


MEANINGLESS = {
    "async-scheduling": Meaningless(False, "how host and device overlap is not an option"),
    "disable-cascade-attn": Meaningless(False, "there is no cascade attention"),
    "disable-custom-all-reduce": Meaningless(False, "XLA makes the collectives"),
    "disable-log-requests": Meaningless(False, "requests are not logged"),
    "disable-log-stats": Meaningless(False, "statistics are not logged"),
    "enable-chunked-prefill": Meaningless(False, "prefill is always chunked"),
    "max-seq-len-to-capture": Meaningless(True, "there are no CUDA graphs"),
    "num-scheduler-steps": Meaningless(True, "steps are scheduled one at a time"),
    "preemption-mode": Meaningless(True, "preempted requests are always recomputed"),
    "swap-space": Meaningless(True, "preempted requests are recomputed, not swapped"),
    "tokenizer-mode": Meaningless(True, "the fast tokenizer is always used"),
    "trust-remote-code": Meaningless(False, "code from model repositories is never run"),
    "use-v2-block-manager": Meaningless(False, "there is one block manager"),
}

_METAVARS = {int: "INT", float: "FLOAT", str: "TEXT"}
_MULTIPLIERS = {"k": 10**3, "K": 2**10, "m": 10**6, "M": 2**20, "g": 10**9, "G": 2**30}


def integer(text: str) -> int:
    """Read an int, also as vLLM writes large ones: `8k` is 8000 and `8K` is 8192; likewise m, M, g, G."""
    multiplier = _MULTIPLIERS.get(text[-1:], 1)
    digits = text if multiplier == 1 else text[:-1]
    try:
        return round(float(digits) * multiplier) if multiplier != 1 else int(digits)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


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
    """Says that the flag has no effect, and goes on."""

    def __call__(self, parser: argparse.ArgumentParser, _namespace: Any, _values: Any, flag: str | None = None) -> None:
        reason = MEANINGLESS[self.option_strings[0].removeprefix("--")].reason
        sys.stderr.write(f"{parser.prog}: {flag} has no effect: {reason}\n")


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    """Add a flag for every option of `EngineConfig`, grouped by section, and the meaningless flags of vLLM's.

    Flags that are not given leave no trace in the namespace; read the others with `given_options`.
    """
    groups = {
        section.name: parser.add_argument_group(f"{section.name} options", _first_line(section.default_factory))
        for section in dataclasses.fields(EngineConfig)
    }
    for flag in engine_flags():
        _add_flag(groups[flag.section], flag)
    for name, meaningless in MEANINGLESS.items():
        parser.add_argument(
            f"--{name}",
            f"--no-{name}",
            action=_Ignore,
            nargs=None if meaningless.takes_value else 0,
            dest=argparse.SUPPRESS,
            default=argparse.SUPPRESS,
            help=argparse.SUPPRESS,
        )


def _add_flag(group: argparse._ArgumentGroup, flag: "EngineFlag") -> None:
    add: Callable[..., Any] = partial(
        group.add_argument, flag.flag, dest=flag.name, default=argparse.SUPPRESS, help=flag.full_help.replace("%", "%%")
    )
    if flag.kind is bool:
        add(action=argparse.BooleanOptionalAction)
    elif flag.choices:
        add(type=flag.kind, choices=flag.choices)
    else:
        add(type=integer if flag.kind is int else flag.kind, metavar=_METAVARS[flag.kind])


def given_options(args: argparse.Namespace) -> dict[str, Any]:
    """The engine options given on the command line, ready for `EngineConfig.from_options` or `LLM(**options)`."""
    return {item.name: getattr(args, item.name) for _, item in option_fields() if hasattr(args, item.name)}


@dataclasses.dataclass(frozen=True)
class EngineFlag:
    """One option as the command line shows it. `kind` is the type of its value, `choices` its values if few."""

    section: str
    name: str
    kind: type
    choices: tuple[Any, ...] | None
    default: Any
    info: OptionInfo

    @property
    def flag(self) -> str:
        """`--max-model-len` for `max_model_len`."""
        return "--" + self.name.replace("_", "-")

    @property
    def bounds(self) -> str:
        """`1 to 256`, `at least 1`, or an empty string."""
        low, high = self.info.minimum, self.info.maximum
        if low is None:
            return "" if high is None else f"at most {high}"
        return f"at least {low}" if high is None else f"{low} to {high}"

    @property
    def full_help(self) -> str:
        """The help text with the default, where it is a value, and the bounds."""
        default = f"default: {self.shown_default}" if self.default is not None else ""
        notes = "; ".join(filter(None, (default, self.bounds)))
        return f"{self.info.help} ({notes})" if notes else self.info.help

    @property
    def shown_default(self) -> str:
        """The default as a person would write it: `on` for True."""
        return ("on" if self.default else "off") if self.kind is bool else str(self.default)


def engine_flags() -> Iterable[EngineFlag]:
    """Yield the flag of every option, in the order of declaration."""
    for section in dataclasses.fields(EngineConfig):
        assert isinstance(section.default_factory, type)
        hints = get_type_hints(section.default_factory)
        for item in dataclasses.fields(section.default_factory):
            kind, choices = _kind(hints[item.name])
            yield EngineFlag(section.name, item.name, kind, choices, item.default, item.metadata["option"])


def _kind(hint: Any) -> tuple[type, tuple[Any, ...] | None]:
    """The type of a value and, for a `Literal`, its choices; `X | None` counts as X."""
    alternatives = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    (found,) = (each for each in alternatives if each is not type(None))
    if get_origin(found) is Literal:
        choices = get_args(found)
        return type(choices[0]), choices
    assert found in (bool, int, float, str), f"no flag can be made from {hint}"
    return found, None


def _first_line(section: Any) -> str:
    return (section.__doc__ or "").strip().splitlines()[0]


def _with_dashes(arguments: Sequence[str]) -> list[str]:
    """`--max_model_len=8` as `--max-model-len=8`; values, and whatever follows `--`, stay as they are."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    result = list(arguments)
    for index, argument in enumerate(arguments[:end]):
        if argument.startswith("--"):
            name, equals, value = argument.partition("=")
            result[index] = name.replace("_", "-") + equals + value
    return result


def page() -> str:
    """`docs/flags.md`: every flag with its values, default and meaning, as Markdown."""
    lines = [
        "# Engine flags",
        "",
        "Generated from `jaxllm/config.py` by `python -m jaxllm.flags docs/flags.md`; do not edit.",
        "",
        "Each flag is also a keyword of `LLM`: `--max-model-len 4096` is `LLM(max_model_len=4096)`.",
        "Flags may be written with underscores, and whole numbers as `8k` (8000) or `8K` (8192).",
    ]
    section = None
    for flag in engine_flags():
        if flag.section != section:
            section = flag.section
            owner = next(item for item in dataclasses.fields(EngineConfig) if item.name == section)
            lines += ["", f"## {section.capitalize()}", "", _first_line(owner.default_factory), ""]
            lines += ["| flag | values | default | meaning |", "|---|---|---|---|"]
        lines.append(_row(flag))
    lines += ["", "## Accepted without effect", ""]
    lines += ["These flags of vLLM's are accepted, with a line that says why they change nothing.", ""]
    lines += ["| flag | why |", "|---|---|"]
    lines += [f"| `--{name}` | {meaningless.reason} |" for name, meaningless in MEANINGLESS.items()]
    return "\n".join(lines) + "\n"


def _row(flag: EngineFlag) -> str:
    name = f"`{flag.flag}`"
    if flag.kind is bool:
        name, values = f"{name}, `--no-{flag.flag.removeprefix('--')}`", "on or off"
    else:
        values = (
            ", ".join(f"`{choice}`" for choice in flag.choices or ()) or flag.bounds or _METAVARS[flag.kind].lower()
        )
    default = "" if flag.default is None else f"`{flag.shown_default}`"
    return f"| {name} | {values} | {default} | {flag.info.help} |"


def main(arguments: Sequence[str]) -> int:
    """Write the page, or with `--check` say whether the file is current (exit code 1 when it is not)."""
    parser = FlagParser(prog="python -m jaxllm.flags", description=main.__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--check", action="store_true")
    args = parser.parse(arguments)
    if not args.check:
        args.file.write_text(page(), encoding="utf-8")
    elif not args.file.exists() or args.file.read_text(encoding="utf-8") != page():
        sys.stderr.write(f"{args.file} is out of date: run `python -m jaxllm.flags {args.file}`\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
