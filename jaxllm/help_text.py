"""How help looks: its width, and colours where it goes to a terminal. Imports nothing heavy."""

import os
import re
import shutil
from collections.abc import Mapping
from typing import Final, TextIO

MOST_COLUMNS: Final = 100
"""Longer lines are hard to read, however wide the terminal is."""
_HEADING: Final = re.compile(r"^(\S[^:\n]*:)(?=$| )")
_NAMES: Final = re.compile(r"^[\w-]+|(?<=, )-[\w-]+")
_CYAN: Final = "\x1b[36m\\g<0>\x1b[0m"


def columns() -> int:
    """The width of help: that of the terminal or of the variable COLUMNS, within 40 and `MOST_COLUMNS`."""
    return min(max(shutil.get_terminal_size().columns - 1, 40), MOST_COLUMNS)


def shows_colours(stream: TextIO, environ: Mapping[str, str] | None = None) -> bool:
    """Whether colours may go to `stream`: to a terminal, unless NO_COLOR is set or TERM is dumb (no-color.org)."""
    found = os.environ if environ is None else environ
    return stream.isatty() and not found.get("NO_COLOR") and found.get("TERM") != "dumb"


def coloured(text: str) -> str:
    """Help with bold headings, and with flags and names of groups and sub-commands in cyan."""
    return "\n".join(map(_line, text.split("\n")))


def _line(line: str) -> str:
    if not line.startswith("  "):
        return _HEADING.sub("\x1b[1m\\1\x1b[0m", line)
    # Descriptions begin further to the right, and examples have several words.
    names, gap, rest = line[2:].partition("  ")
    if not names.startswith("-") and (" " in names or not (names and rest)):
        return line
    return f"  {_NAMES.sub(_CYAN, names)}{gap}{rest}"
