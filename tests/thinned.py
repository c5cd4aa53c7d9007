"""Grids of tests leave cases out unless the environment has JAXLLM_EVERY_CASE."""

import os
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")

EVERY_CASE = "JAXLLM_EVERY_CASE" in os.environ


def thinned(few: Iterable[T], others: Iterable[T]) -> tuple[T, ...]:
    """The few that have every choice between them, and the others where every case is asked for."""
    return (*few, *(others if EVERY_CASE else ()))
