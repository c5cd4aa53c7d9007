"""The scores of one chunk of keys in prefill, with biases and masks: keys along sublanes, queries along lanes."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxllm.pallas_kernels.paged_attention.tpu.common import Options, load_heads, load_queries, scores_of
from jaxllm.pallas_kernels.paged_attention.tpu.prefill_copies import Memory
from jaxllm.pallas_kernels.paged_attention.tpu.prefill_softmax import Scored
from jaxllm.pallas_kernels.tpu_common.constants import LANES, LOG2_E, MASKED, Ref


class Chunk(NamedTuple):
    """A chunk of keys, and the block of queries that attends to it; ranges are of positions."""

    slot: Any
    """Slot of its block of keys."""
    start: Any
    """Place of its first key in the slot."""
    place: Any
    """Place of the queries."""
    first: Any
    """Position of its first key."""
    keys: tuple[Any, Any]
    """Keys that are in VMEM."""
    queries: tuple[Any, Any]
    window: Any
    """Keys that a query sees."""


class Scores:
    """The scores of a block's queries with the keys of a chunk, for one KV head after the other."""

    def __init__(self, memory: Memory, chunk: Chunk, options: Options) -> None:
        self.memory, self.chunk, self.options = memory, chunk, options
        self.offset = chunk.first - chunk.queries[0]
        self.causal = self.offset + options.blocks.chunk > 1
        """Whether some query comes before some key."""
        self.windowed = chunk.first < chunk.queries[1] - chunk.window
        """Whether some query does not see some key any more."""

    @property
    def masked(self) -> Any:
        """Whether some query does not see some key."""
        return self.causal | self.windowed if self.options.has_window else self.causal

    @property
    def has_halves(self) -> bool:
        """Whether blocks on the diagonal can be cut: both halves must be whole tiles of the matrix units."""
        blocks = self.options.blocks
        aligned = blocks.chunk == blocks.queries and blocks.chunk % (2 * LANES) == 0
        return aligned and not self.options.has_spans

    @property
    def diagonal(self) -> Any:
        """Whether query i sees the keys up to i: the first half of queries sees none of the last half of keys."""
        aligned = self.offset == 0
        return aligned & jnp.logical_not(self.windowed) if self.options.has_window else aligned

    def whole(self, first: Any, count: int, *, masked: bool) -> list[list[Scored]]:
        """All keys for all queries, for each of `count` heads."""
        found = []
        for head, (keys, values) in self._keys(first, count, masked=masked):
            scores = self._biased(scores_of(keys, self._queries(head), self.options), self.offset, head)
            found.append([(self._visible(scores, self.offset) if masked else scores, values)])
        return found

    def halves(self, first: Any, count: int) -> list[list[Scored]]:
        """On the diagonal: half of the keys for all queries, and the other half for the last half of them."""
        return [self._halves(head, *loaded) for head, loaded in self._keys(first, count, masked=True)]

    def _halves(self, head: Any, keys: jax.Array, values: jax.Array) -> list[Scored]:
        options, half = self.options, self.options.blocks.chunk // 2
        queries, parts = self._queries(head), []
        near = half * options.dims.group_rows
        for key in (0, half):
            scores = scores_of(keys[key : key + half], queries[key * options.dims.group_rows :], options)
            scores = self._biased(scores, jnp.int32(0), head)
            seen = jnp.where(self._causal(half, near, jnp.int32(0)), scores[:, :near], MASKED)
            # Queries after the half see all of it.
            scores = jnp.concatenate([seen, scores[:, near:]], axis=1) if key == 0 else seen
            parts.append((scores, values[key : key + half]))
        return parts

    def _keys(self, first: Any, count: int, *, masked: bool) -> list[tuple[Any, tuple[jax.Array, jax.Array]]]:
        """Numbers of heads, and keys and values of each."""
        chunk = self.chunk
        begin, end = (position - chunk.first for position in chunk.keys)

        def valid(index: Any) -> Any:
            return (index < end) & (index >= begin)

        keep = valid if masked else None
        loaded = load_heads(self.memory.kv, chunk.slot, first, count, chunk.start, keep, self.options)
        return [(first + i, each) for i, each in enumerate(loaded)]

    def _queries(self, head: Any) -> jax.Array:
        queries = load_queries(self.memory.q, self.chunk.place, head, self.options)
        return queries.astype(self.options.dims.compute_dtype)

    def _causal(self, keys: int, rows: int, offset: Any) -> jax.Array:
        """Which of `keys` keys [keys, rows] do not come after the query; `offset`: the first key less the first query.

        Row m is of query m // group: instead of dividing, positions of keys are multiplied with the group.
        """
        key = lax.broadcasted_iota(jnp.int32, (keys, 1), 0) + offset
        return key * self.options.dims.group_rows <= lax.broadcasted_iota(jnp.int32, (1, rows), 1)

    def _visible(self, scores: jax.Array, offset: Any) -> jax.Array:
        """Scores [keys, rows] with those of invisible keys masked."""
        keys, rows = scores.shape
        if self.memory.bounds is None:
            seen = self._causal(keys, rows, offset)
        else:
            key = lax.broadcasted_iota(jnp.int32, (keys, 1), 0) + offset
            seen = key * self.options.dims.group_rows < self.memory.bounds[...]
        if self.options.has_window:
            seen &= jnp.logical_not(self._causal(keys, rows, offset + self.chunk.window))
        return jnp.where(seen, scores, MASKED)

    def _biased(self, scores: jax.Array, offset: Any, head: Any) -> jax.Array:
        """Scores with ALiBi, where there is any."""
        if not self.options.has_slopes:
            return scores
        row = lax.broadcasted_iota(jnp.int32, (1, scores.shape[1]), 1).astype(jnp.float32)
        query = jnp.floor((row + 0.5) * (1.0 / self.options.dims.group_rows))
        key = (lax.broadcasted_iota(jnp.int32, (scores.shape[0], 1), 0) + offset).astype(jnp.float32)
        return scores + per_row(self.memory.heads, 0, head, scores.shape[1]) * LOG2_E * (key - query)


def per_row(heads: Ref, which: int, head: Any, rows: int) -> jax.Array:
    """Slopes (0) or sinks (1) of a KV head for `rows` rows: [1, rows]."""
    pattern = heads[which, head]
    return jnp.concatenate([pattern] * (rows // pattern.shape[1]), axis=1)
