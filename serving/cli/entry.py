"""How a sub-command is found."""

from typing import NamedTuple


class Entry(NamedTuple):
    """Where a sub-command lives, and its line in the help of what it belongs to."""

    module: str
    summary: str
