"""How long work reports itself, without knowing who shows it."""

from typing import Protocol


class Progress(Protocol):
    """Called with the name of a stage, what is done of it and what there is in total.

    Stages are `"Loading weights"` and others of weights (in bytes), and `"Compiling"` (in step shapes). Calls come from
    several threads.
    """

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Report. `done` and `total` are counts of the stage's unit."""


def silent(stage: str, done: int, total: int) -> None:
    """Report to nobody."""
