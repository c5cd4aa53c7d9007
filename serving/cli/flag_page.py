"""The page of all flags: `python -m jaxllm.serving.cli.flag_page docs/flags.md` writes it, `--check` compares."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from jaxllm.flags import Flag, FlagParser, engine_sections, section_flags, summary
from jaxllm.foreign import MEANINGLESS, Meaningless
from jaxllm.serving.options.server import ServerOptions, meaningless_flags, server_flags


def page() -> str:
    """`docs/flags.md`: every flag with its values, default and meaning, as Markdown."""
    lines = [
        "# Flags",
        "",
        "Generated from `jaxllm/config.py` and `serving/options/server.py` by `python -m jaxllm.serving.cli.flag_page",
        "docs/flags.md`; do not edit.",
        "",
        "Flags may be written with underscores, and whole numbers as `8k` (8000) or `8K` (8192).",
        "",
        "## Engine",
        "",
        "For every sub-command that runs a model. Each is also a keyword of `LLM`: `--max-model-len 4096` is",
        "`LLM(max_model_len=4096)`.",
    ]
    for name, options in engine_sections().items():
        lines += ["", f"### {name.capitalize()}", "", summary(options), "", *_table(section_flags(name, options))]
    lines += [
        "",
        "## Server",
        "",
        "For `jaxllm serve`, which takes the flags of the engine too, and both from a file with",
    ]
    lines += ["`--config FILE.yaml`: there, a flag is a key (`max-model-len: 4096`), and one on the command line wins."]
    lines += ["", summary(ServerOptions), "", *_table(server_flags())]
    every = {**meaningless_flags(), **MEANINGLESS}
    lines += ["", "## Accepted without effect", ""]
    lines += [
        "These flags of vLLM's are accepted, with a line that says why they change nothing. Those of the engine are"
    ]
    lines += ["accepted as keywords of `LLM` too.", ""]
    lines += ["| flags | why |", "|---|---|"]
    lines += _rows({name: known for name, known in every.items() if known.neutral is None})
    lines += ["", "## Accepted where they ask for nothing", ""]
    lines += ["These flags of vLLM's are accepted with a value that changes nothing; any other is an error.", ""]
    lines += ["| flags | accepted | what to do for others |", "|---|---|---|"]
    lines += _rows({name: known for name, known in every.items() if known.neutral is not None})
    return "\n".join(lines) + "\n"


def _rows(every: Mapping[str, Meaningless]) -> Iterator[str]:
    """A row for all flags with the same reason and the same values."""
    rows: dict[str, list[str]] = {}
    for name, known in sorted(every.items()):
        values = "" if known.neutral is None else f"{_shown(known)} | "
        flags = [f"--{name}"] + [f"-{known.short}"] * bool(known.short)
        rows.setdefault(f"{values}{known.reason}", []).append(", ".join(f"`{flag}`" for flag in flags))
    return (f"| {', '.join(names)} | {rest} |" for rest, names in sorted(rows.items(), key=lambda row: row[1]))


def _shown(known: Meaningless) -> str:
    """The values that are accepted."""
    if not known.takes_value:
        return "off"
    shown = [json.dumps(list(value) if isinstance(value, tuple) else value) for value in known.neutral or ()]
    return ", ".join(f"`{text.strip(chr(34))}`" for text in dict.fromkeys(shown)) or "none"


def _table(flags: Iterable[Flag]) -> Iterator[str]:
    yield "| flag | values | default | meaning |"
    yield "|---|---|---|---|"
    for flag in flags:
        names = list(flag.names)
        if flag.kind is bool:
            names.insert(1, f"--no-{flag.flag.removeprefix('--')}")
        shown = ", ".join(f"`{name}`" for name in names)
        default = f"`{flag.shown_default}`" if flag.shown_default else ""
        synonyms = "".join(f" `{ours}` may be written `{theirs}`." for theirs, ours in flag.info.synonyms.items())
        environment = f" Or `{flag.info.environment}` in the environment." if flag.info.environment else ""
        yield f"| {shown} | {flag.values} | {default} | {flag.info.help}{synonyms}{environment} |"


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
