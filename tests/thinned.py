"""Grids of tests leave cases out unless the environment has JAXLLM_EVERY_CASE."""

import os
from collections.abc import Iterable
from itertools import product
from typing import Any, TypeVar

T = TypeVar("T")

EVERY_CASE = "JAXLLM_EVERY_CASE" in os.environ


def thinned(few: Iterable[T], others: Iterable[T]) -> tuple[T, ...]:
    """The few that have every choice between them, and the others where every case is asked for."""
    return (*few, *(others if EVERY_CASE else ()))


def drawn(*choices: Iterable[Any], share: int) -> list[tuple[Any, ...]]:
    """Every `share`-th case of a grid, or all where every case is asked for.

    Every choice is among them; and every two together, where the others can make up for these.
    """
    grid = product(*(enumerate(each) for each in choices))
    return [
        tuple(value for _, value in case) for case in grid if EVERY_CASE or sum(place for place, _ in case) % share == 0
    ]
