"""The parser of command lines."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from jaxllm.errors import nearest
from jaxllm.flags.help import HelpFormatter, ShowHelp
from jaxllm.flags.rewriting import rewritten


class FlagParser(argparse.ArgumentParser):
    """An argument parser whose errors are one line on stderr (exit code 2) and name the nearest known flag."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, add_help=False, formatter_class=HelpFormatter, **settings)
        self.add_argument(
            "-h",
            "--help",
            action=ShowHelp,
            nargs="?",
            const="",
            default=argparse.SUPPRESS,
            metavar="WORD",
            help="Show help: an overview, or what is about this group or word (--help=WORD), or --help=all.",
        )

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse strictly. Flags may be written with underscores, as vLLM allows."""
        args, unknown = self.parse_known_args(arguments)
        if unknown:
            name = unknown[0].partition("=")[0]
            if name.startswith("-"):
                self.error(f"unknown flag {name}{nearest(name, self._option_string_actions)}")
            self.error(f"unexpected argument {name!r}")
        return args

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse what is known, in the forms that vLLM allows; the rest is returned alongside it."""
        given = list(sys.argv[1:] if args is None else args)
        # Only --help=WORD has a word: what follows --help may be the name of a model.
        end = given.index("--") if "--" in given else len(given)
        given[:end] = ["--help=" if each in ("-h", "--help") else each for each in given[:end]]
        return super().parse_known_args(rewritten(given, self._option_string_actions), namespace)

    def error(self, message: str) -> Any:
        """Print `message` on one line and exit with code 2."""
        self.exit(2, f"{self.prog}: {message}\n")
