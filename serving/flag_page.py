"""The page that lists every flag: `python -m jaxllm.serving.flag_page docs/flags.md` writes it, `--check` compares."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from jaxllm.flags import MEANINGLESS, Flag, FlagParser, engine_sections, section_flags, summary
from jaxllm.serving.options import ServerOptions, meaningless_flags, server_flags


def page() -> str:
    """`docs/flags.md`: every flag with its values, default and meaning, as Markdown."""
    lines = [
        "# Flags",
        "",
        "Generated from `jaxllm/config.py` and `serving/options.py` by `python -m jaxllm.serving.flag_page",
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
    lines += ["", "## Accepted without effect", ""]
    lines += ["These flags of vLLM's are accepted, with a line that says why they change nothing.", ""]
    lines += ["| flag | why |", "|---|---|"]
    every = {**meaningless_flags(), **MEANINGLESS}
    lines += [f"| `--{name}` | {every[name].reason} |" for name in sorted(every)]
    return "\n".join(lines) + "\n"


def _table(flags: Iterable[Flag]) -> Iterator[str]:
    yield "| flag | values | default | meaning |"
    yield "|---|---|---|---|"
    for flag in flags:
        names = [flag.flag, *(f"--{alias}" for alias in flag.info.aliases)]
        if flag.kind is bool:
            names.insert(1, f"--no-{flag.flag.removeprefix('--')}")
        shown = ", ".join(f"`{name}`" for name in names)
        default = f"`{flag.shown_default}`" if flag.shown_default else ""
        environment = f" Or `{flag.info.environment}` in the environment." if flag.info.environment else ""
        yield f"| {shown} | {flag.values} | {default} | {flag.info.help}{environment} |"


def main(arguments: Sequence[str]) -> int:
    """Write the page, or with `--check` say whether the file is current (exit code 1 when it is not)."""
    parser = FlagParser(prog="python -m jaxllm.serving.flag_page", description=main.__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--check", action="store_true")
    args = parser.parse(arguments)
    if not args.check:
        args.file.write_text(page(), encoding="utf-8")
    elif not args.file.exists() or args.file.read_text(encoding="utf-8") != page():
        sys.stderr.write(f"{args.file} is out of date: run `python -m jaxllm.serving.flag_page {args.file}`\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
