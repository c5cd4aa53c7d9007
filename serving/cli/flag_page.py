"""The page of all flags: `python -m jaxllm.serving.cli.flag_page docs/flags.md` writes it, `--check` compares."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import TextWrapper
from typing import Final

from jaxllm.compat.vllm.options import NOOP_OPTIONS, TRANSLATED, NoopOption
from jaxllm.compat.vllm.options.environment import VARIABLES
from jaxllm.config import PRESETS, Section
from jaxllm.config.presets import Preset
from jaxllm.flags import Flag, FlagParser, engine_sections, section_flags, summary
from jaxllm.serving.options.fleet import RouteOptions
from jaxllm.serving.options.server import SERVER_SECTIONS, noop_flags

_ACRONYMS: Final = ("api", "http", "tls")
_PAGE: Final = """\
# Flags

Generated from `jaxllm/config/` and `serving/options/` by
`python -m jaxllm.serving.cli.flag_page docs/flags.md`; do not edit.

Write flags with hyphens or underscores, and integers as `8k` (8000) or `8K` (8192). A JSON object
may be given in pieces: `--hf-overrides.rope_theta 1e6 --pooler-config.normalize false`; a `+` after
the name (`--name.key+ a,b`) makes a list. `None` is the default of options that have none.
`--disable-x` is `--no-enable-x`.

## Engine

These flags work with every sub-command that runs a model. Each is also a keyword of `LLM`:
`--max-model-len 4096` is `LLM(max_model_len=4096)`.

{engine}

## Presets

`--preset NAME` stands for these flags, and works wherever the engine flags do. Flags, keys of a
file and variables of the environment win over it, each for its own flag.

{presets}

## Server

These flags work with `jaxllm serve`, which also takes the engine flags. Both can be in a file that
`--config FILE.yaml` names, where a flag is a key (`max-model-len: 4096`). The command line takes
precedence over the file.

{server}

## Router

These flags are of `jaxllm route`, which also takes the flags of `jaxllm serve` for addresses, keys,
TLS, limits of connections and logs: `jaxllm route --help=router` lists them.

{route}

## Environment

`jaxllm serve` reads these vLLM variables, with a warning. Flags and files take precedence. Other
variables that begin with VLLM_ are named in a warning.

{environment}

## Translated flags

These vLLM flags are accepted, and stand for flags above. Engine flags are also accepted as keywords
of `LLM`.

{translated}

## Accepted without effect

These vLLM flags are accepted, with a line in the log that says why they have no effect. Engine
flags are also accepted as keywords of `LLM`.

{meaningless}

## Accepted with a neutral value

These flags of vLLM are accepted with a value that changes nothing; any other value is an error.

{neutral}
"""


def page() -> str:
    """`docs/flags.md`: every flag with its values, default and meaning, as Markdown in lines of 100 columns."""
    every = {**noop_flags(), **NOOP_OPTIONS}
    return _PAGE.format(
        engine=_sections(engine_sections()),
        presets=_list(map(_preset, PRESETS, PRESETS.values())),
        server=_sections(SERVER_SECTIONS),
        route=_list(map(_flag, section_flags("route", RouteOptions))),
        environment=_list(f"`{name}`: `--{variable.option.replace('_', '-')}`" for name, variable in VARIABLES.items()),
        translated=_list(_translated()),
        meaningless=_list(_grouped({name: known for name, known in every.items() if known.neutral is None})),
        neutral=_list(_grouped({name: known for name, known in every.items() if known.neutral is not None})),
    )


def _sections(sections: Mapping[str, type[Section]]) -> str:
    return "\n\n".join(
        f"### {name.upper() if name in _ACRONYMS else name.capitalize()}\n\n{summary(options)}\n\n"
        f"{_list(map(_flag, section_flags(name, options)))}"
        for name, options in sections.items()
    )


def _preset(name: str, preset: Preset) -> str:
    """A preset's purpose, flags and reason."""
    flags = " ".join(
        f"--{option.replace('_', '-')}" + ("" if value is True else f" {value}")
        for option, value in preset.options.items()
    )
    return f"`{name}`: `{flags}`. {preset.about} {preset.why}"


def _list(items: Iterable[str]) -> str:
    wrap = TextWrapper(100, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(map(wrap.fill, items))


def _flag(flag: Flag) -> str:
    """A flag's names, values, default and meaning."""
    names = list(flag.names)
    if flag.kind is bool:
        names.insert(1, f"--no-{flag.flag.removeprefix('--')}")
    shown = ", ".join(f"`{name}`" for name in names)
    default = f"; default `{flag.shown_default}`" if flag.shown_default else ""
    synonyms = "".join(
        f" `{theirs}` is the default." if ours is None else f" `{ours}` may be written `{theirs}`."
        for theirs, ours in flag.info.synonyms.items()
    )
    synonyms += " vLLM's values are accepted with a warning and have no effect." if flag.info.hints else ""
    environment = f" Environment variable: `{flag.info.environment}`." if flag.info.environment else ""
    return f"{shown} ({flag.values}{default}): {flag.info.help}{synonyms}{environment}"


def _translated() -> Iterator[str]:
    """One item for each flag that stands for others."""
    for name, known in sorted(TRANSLATED.items()):
        short = f", `-{known.short}`" if known.short else ""
        yield f"`--{name}`{short}: {known.about}"


def _grouped(every: Mapping[str, NoopOption]) -> Iterator[str]:
    """One item for all flags with the same reason and the same values."""
    items: dict[str, list[str]] = {}
    for name, known in sorted(every.items()):
        values = "" if known.neutral is None else f" (accepted: {_shown(known)})"
        flags = [f"--{name}"] + [f"-{known.short}"] * bool(known.short)
        items.setdefault(f"{values}: {known.reason}", []).append(", ".join(f"`{flag}`" for flag in flags))
    return (f"{', '.join(names)}{rest}" for rest, names in sorted(items.items(), key=lambda item: item[1]))


def _shown(known: NoopOption) -> str:
    """The values that are accepted."""
    if not known.takes_value:
        return "off"
    shown = [json.dumps(list(value) if isinstance(value, tuple) else value) for value in known.neutral or ()]
    return ", ".join(f"`{text.strip(chr(34))}`" for text in dict.fromkeys(shown)) or "none"


def main(arguments: Sequence[str]) -> int:
    """Write the page, or with `--check` say whether the file is current (exit code 1 when it is not)."""
    parser = FlagParser(prog="python -m jaxllm.serving.cli.flag_page", description=main.__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--check", action="store_true")
    args = parser.parse(arguments)
    if not args.check:
        args.file.write_text(page(), encoding="utf-8")
    elif not args.file.exists() or args.file.read_text(encoding="utf-8") != page():
        sys.stderr.write(f"{args.file} is out of date: run `python -m jaxllm.serving.cli.flag_page {args.file}`\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
