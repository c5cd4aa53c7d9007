"""Shared by cases of recurrent kernels: rows of a step, at random places."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from jaxllm.pallas_kernels.ragged_batch import RaggedBatch
from jaxllm.pallas_kernels.recurrence.rows import OUT_OF_RANGE, StateRows

SPARE_SLOTS = 2
"""Slots that no row has."""


@dataclass(frozen=True)
class RowsCase:
    """Tokens of each row and how many it had before, in a step with places for so many tokens and rows."""

    name: str
    lengths: tuple[int, ...]
    done: tuple[int, ...]
    tokens: int = 96
    rows: int = 12

    @property
    def num_slots(self) -> int:
        """Slots, including some that no row has."""
        return self.rows + SPARE_SLOTS


ROWS: tuple[RowsCase, ...] = (
    RowsCase("one_token", (1,), (3,), tokens=1, rows=1),
    RowsCase("decode", (1, 1, 1), (5, 0, 9)),
    RowsCase("all_decodes", (1,) * 12, tuple(range(12))),
    RowsCase("prompt", (75,), (0,)),
    RowsCase("second_chunk", (66,), (11,)),
    RowsCase("short_chunks", (2, 3), (1, 2)),
    RowsCase("mixed", (1, 1, 6, 70, 2), (4, 0, 0, 3, 1)),
    RowsCase("full", (1, 64, 31), (0, 64, 0)),
    RowsCase("nothing", (), ()),
)
"""Decodes, prompts, and both; rows of several chunks. Most are of one shape, so that they share a program."""

PROMPT, MIXED = ROWS[3], ROWS[6]


@dataclass(frozen=True)
class ChannelsCase:
    """Rows, and how many channels have a state of their own."""

    rows: RowsCase
    channels: int = 12

    @property
    def name(self) -> str:
        """Name of the rows."""
        return self.rows.name


CHANNELS: tuple[ChannelsCase, ...] = tuple(map(ChannelsCase, ROWS))


def make_rows(case: RowsCase) -> tuple[StateRows, RaggedBatch]:
    """Where the rows' states lie, in no order, and the batch, without pages."""
    count = len(case.lengths)
    slots, begins = np.full(case.rows, OUT_OF_RANGE, np.int32), np.ones(case.rows, np.bool_)
    slots[:count] = np.random.default_rng(1).permutation(case.num_slots)[:count]
    begins[:count] = np.equal(case.done, 0)
    batch = make_batch(case.lengths, case.done, case.tokens, case.rows)
    return StateRows(jnp.asarray(slots), jnp.asarray(begins)), batch


def make_batch(lengths: Sequence[int], done: Sequence[int], tokens: int, rows: int) -> RaggedBatch:
    """A batch with so many tokens of each row after those already `done`, padded to `tokens` and `rows`.

    Rows with one token come first. It has no pages.
    """
    total, count = sum(lengths), len(lengths)
    query_start = np.full(rows + 1, total, np.int32)
    query_start[: count + 1] = np.cumsum((0, *lengths))
    positions, token_rows, kv_lens = (np.zeros(size, np.int32) for size in (tokens, tokens, rows))
    positions[:total] = [start + place for start, length in zip(done, lengths, strict=True) for place in range(length)]
    token_rows[:total] = np.repeat(np.arange(count), lengths)
    kv_lens[:count] = np.add(lengths, done)
    decodes = int(np.cumprod(np.equal(lengths, 1)).sum())
    arrays = (positions, token_rows, query_start, kv_lens, np.zeros((rows, 1), np.int32))
    scalars = (jnp.int32(value) for value in (total, decodes, count))
    return RaggedBatch(*(jnp.asarray(array) for array in arrays), *scalars)
