"""Positions by which tokens are rotated, where those of images are places in a grid (M-RoPE, arXiv 2409.12191).

Kept as the difference from the place in the cache, which is 0 for text without images: such requests cost nothing.

Axis letters: S slots, T tokens.
"""

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]

PARTS = 3
"""Of a position: time, height and width."""


class RotaryOffsets:
    """By how much the position of each token differs from its place, for the requests in the slots."""

    def __init__(self, num_slots: int, max_model_len: int) -> None:
        # Zeros take no memory before they are written to.
        self._inside = np.zeros((PARTS, num_slots, max_model_len), np.int32)
        self._ends, self._after = np.zeros(num_slots, np.int32), np.zeros(num_slots, np.int32)

    def set(self, slot: int, inside: Int32Array, after: int) -> None:
        """The offsets of the slot's tokens up to the end of the last image, int32 [3, n], and of all after them."""
        self._ends[slot], self._after[slot] = inside.shape[1], after
        self._inside[:, slot, : inside.shape[1]] = inside

    def clear(self, slot: int) -> None:
        """The slot has no images any more."""
        self._ends[slot] = self._after[slot] = 0

    def of(self, slots: Int32Array, rows: Int32Array, places: Int32Array) -> Int32Array:
        """The offsets of tokens, int32 [3, T], or [3, 0] where none of their requests has images.

        The tokens are of the requests in `slots` (int32 [n]) by `rows` (int32 [T]), and at `places` (int32 [T]).
        """
        if not self._ends[slots].any():
            return np.zeros((PARTS, 0), np.int32)
        own = slots[rows]
        return np.where(places < self._ends[own], self._inside[:, own, places], self._after[own]).astype(np.int32)
