"""Prompts given as embeddings: rows for the model's first layer in place of token ids."""

from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from typing import Final, Self

import numpy as np
import numpy.typing as npt

FIELD: Final = "prompt_embeds"
"""The name that requests give them."""

NO_TOKEN: Final = -2
"""Stands in a prompt's token ids where an embedding takes the token's place."""


@dataclass(frozen=True, eq=False, slots=True)
class PromptEmbeds:
    """Embeddings of a prompt: `rows` [E, D] of the engine's type, for `places` int32 [E], in order.

    The prompt's token ids are `NO_TOKEN` there. `page_keys` has for each page of the prompt what it depends on besides
    its token ids: a digest of the page's rows, empty where there are none.
    """

    rows: np.ndarray
    places: npt.NDArray[np.int32]
    page_keys: tuple[bytes, ...]

    @classmethod
    def of(cls, rows: np.ndarray, token_ids: np.ndarray, block_size: int) -> Self:
        """From `rows` [E, D] and the prompt's token ids, int32 [length], in pages of so many."""
        places = np.flatnonzero(token_ids == NO_TOKEN).astype(np.int32)
        assert rows.shape[:1] == places.shape
        rows = np.ascontiguousarray(rows)
        ends = np.searchsorted(places, np.arange(0, len(token_ids) + block_size, block_size)).tolist()
        keys = tuple(_key(rows[first:last]) for first, last in pairwise(ends))
        return cls(rows, places, keys)

    def between(self, start: int, end: int) -> tuple[npt.NDArray[np.int32], np.ndarray]:
        """Places in the prompt from `start` to `end` that have embeddings, int32 [n], and these, [n, D]."""
        first, last = np.searchsorted(self.places, (start, end))
        return self.places[first:last], self.rows[first:last]

    def page_key(self, number: int) -> bytes:
        """What the prompt's page of this number depends on besides its token ids."""
        return self.page_keys[number] if number < len(self.page_keys) else b""


def _key(rows: np.ndarray) -> bytes:
    return sha256(rows.reshape(-1).view(np.uint8).data).digest() if len(rows) else b""
