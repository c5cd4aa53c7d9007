"""The one rule that keeps held-out prompts out of the training text."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from random import Random
from typing import Protocol, TypeVar

HELD_OUT_SHARE = 10
"""One key in this many is held out."""


def is_held_out(key: str) -> bool:
    """Whether the combination which `key` names belongs to the held-out tenth.

    A hash of the combination decides, never a seed, so no seed of the corpus can ever show the model a held-out one.
    """
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=4).digest()) % HELD_OUT_SHARE == 0


class Keyed(Protocol):
    """Anything which names its combination."""

    @property
    def key(self) -> str:
        """The combination, in words."""
        ...


Made = TypeVar("Made", bound=Keyed)


def draw(make: Callable[[Random], Made], rng: Random, held_out: bool = False) -> Made:
    """Draws from `make` until the combination lies on the wanted side of the split."""
    while is_held_out((made := make(rng)).key) != held_out:
        pass
    return made
