"""`jaxllm completion`: what makes a shell complete the sub-commands, flags and values of `jaxllm`."""

import argparse
import re
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Final

import shtab

from jaxllm.flags import FlagParser
from jaxllm.serving.cli.main import COMMANDS, Entry

HELP = "Write a script that makes the shell complete sub-commands, flags and values."
USAGE = "{bash,zsh,fish}"
SHELLS: Final = ("bash", "zsh", "fish")
EXAMPLES = """examples:
  jaxllm completion bash > ~/.local/share/bash-completion/completions/jaxllm
  jaxllm completion zsh > ~/.zfunc/_jaxllm         with fpath+=~/.zfunc before compinit in ~/.zshrc
  jaxllm completion fish > ~/.config/fish/completions/jaxllm.fish

The script is complete in itself: pressing Tab does not start Python. Write it again after an update."""
_PATHS: Final = re.compile(
    r"(^|_)(config|dir|executables|file|keyfile|certfile|cacert|model|output|path|tag|template|tokenizer)$"
)
"""Names of flags and arguments whose values may be paths."""
_LONGEST: Final = 70
"""Columns of a description, next to a flag."""


def add_arguments(parser: FlagParser) -> None:
    """Declare the shell."""
    parser.epilog = EXAMPLES
    parser.add_argument("shell", metavar=f"{{{','.join(SHELLS)}}}", choices=SHELLS, help="The shell to write for.")


def run(args: argparse.Namespace) -> int:
    """Write the script to standard output."""
    sys.stdout.write(script(args.shell))
    return 0


def script(shell: str) -> str:
    """The script for one of `SHELLS`."""
    return str(shtab.complete(whole_parser(), shell=shell))


def whole_parser() -> FlagParser:
    """One parser with every sub-command below it, and descriptions that fit into a line."""
    parser = FlagParser(prog="jaxllm", description="LLM inference and serving in JAX.")
    parser.add_argument("-V", "--version", action="store_true", help="Print the version.")
    _add_commands(parser, COMMANDS)
    for each in _every(parser):
        if each.help and each.help is not argparse.SUPPRESS:
            each.help = _short(each.help)
        if each.choices is None and each.nargs != 0 and _PATHS.search(each.dest):
            # The name of the attribute that shtab reads.
            each.complete = shtab.FILE  # type: ignore[attr-defined]
    return parser


def _add_commands(parser: FlagParser, commands: Mapping[str, Entry]) -> None:
    below = parser.add_subparsers()
    for name, entry in commands.items():
        each = below.add_parser(name, help=_short(entry.summary))
        if entry.commands:
            _add_commands(each, entry.commands)
        else:
            import_module(entry.module).add_arguments(each)


def _every(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The actions of a parser and of those below it."""
    for action in parser._actions:  # noqa: SLF001  argparse has no other way to them
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for each in action.choices.values():
                yield from _every(each)
        else:
            yield action


def _short(text: str) -> str:
    """The first sentence, cut where it is long."""
    first = re.split(r"(?<=\w)[.:;] ", text.replace("%%", "%"), maxsplit=1)[0].rstrip(".")
    cut = first if len(first) <= _LONGEST else f"{first[:_LONGEST].rsplit(' ', 1)[0]}..."
    return cut.replace("%", "%%")
