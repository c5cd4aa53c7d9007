"""Segment attention in plain XLA operations: text by text, in blocks of queries and keys, with an online softmax.

The cost of a text follows from its own length, whatever the size of the batch. Blocks begin where the text begins, so
that a text's result does not depend on its neighbours. ("FlashAttention", arXiv 2205.14135)
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxllm.pallas_kernels.segment_attention.relative import RelativeScores, scores_by_distance
from jaxllm.pallas_kernels.segment_attention.segments import Segments

MASKED = -1e30
"""Score of an invisible key. Finite, so that a block without any visible key leaves no NaN."""

QUERIES, KEYS = 64, 128
"""Tokens in a block."""


class _SoftmaxState(NamedTuple):
    """State of an online softmax: maximum and total [N, Q], weighted sum of values [N, Q, H], all float32."""

    maximum: jax.Array
    total: jax.Array
    weighted: jax.Array


def xla_segment_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segments: Segments,
    *,
    scale: float,
    window: int | None = None,
    relative: RelativeScores | None = None,
) -> jax.Array:
    """See `segment_attention`."""
    tokens = q.shape[0]
    size, keys = min(QUERIES, tokens), min(KEYS, tokens)
    # Blocks may reach beyond the tokens. Heads come first, as batched products want them.
    queries = _heads_first(q, size)
    context = tuple(_heads_first(each, keys) for each in (k, v))
    distances = None if relative is None else _Distances.of(relative, size, keys)

    def text(row: jax.Array, out: jax.Array) -> jax.Array:
        begin, end = segments.starts[row], segments.starts[row + 1]

        def block(number: jax.Array, out: jax.Array) -> jax.Array:
            first = begin + number * size
            own = _slice(queries, first, size)
            attended = _block(own, context, first, begin, end, keys, scale, window, distances)
            # What reaches beyond the text's end is written over by the next one.
            return lax.dynamic_update_slice(out, attended.astype(out.dtype), (0, first, 0))

        return lax.fori_loop(0, _blocks(end - begin, size), block, out)

    out = lax.fori_loop(0, segments.num_rows, text, jnp.zeros_like(queries))
    return out[:, :tokens].transpose(1, 0, 2)


def _block(
    queries: jax.Array,
    context: tuple[jax.Array, ...],
    first: jax.Array,
    begin: jax.Array,
    end: jax.Array,
    keys: int,
    scale: float,
    window: int | None,
    distances: "_Distances | None",
) -> jax.Array:
    """Queries [N, Q, H] from place `first`, of a text from `begin` to `end`, against its keys; [N, Q, H] float32."""
    places = first + jnp.arange(queries.shape[1], dtype=jnp.int32)

    def visit(index: jax.Array, run: _SoftmaxState) -> _SoftmaxState:
        start = begin + index * keys
        key, value = (_slice(each, start, keys) for each in context)
        seen = start + jnp.arange(keys, dtype=jnp.int32)
        visible = jnp.broadcast_to(seen < end, (queries.shape[1], keys))
        if window is not None:
            visible &= jnp.abs(seen - places[:, None]) <= window
        products = jnp.einsum("nqh,nsh->nqs", queries, key, preferred_element_type=jnp.float32)
        if distances is not None:
            products += distances.scores(first, places, start, seen)
        scores = jnp.where(visible, products * scale, MASKED)
        maximum = jnp.maximum(run.maximum, scores.max(axis=-1))
        weights = jnp.where(visible, jnp.exp(scores - maximum[..., None]), 0.0)
        decay = jnp.exp(run.maximum - maximum)
        weighted = jnp.einsum("nqs,nsh->nqh", weights.astype(value.dtype), value, preferred_element_type=jnp.float32)
        total = run.total * decay + weights.sum(axis=-1)
        return _SoftmaxState(maximum, total, run.weighted * decay[..., None] + weighted)

    low, high = begin, end
    if window is not None:
        low = jnp.maximum(first - window, begin)
        high = jnp.minimum(first + queries.shape[1] + window, end)
    shape = queries.shape[:2]
    empty = jnp.zeros(queries.shape, jnp.float32)
    run = _SoftmaxState(jnp.full(shape, MASKED, jnp.float32), jnp.zeros(shape, jnp.float32), empty)
    run = lax.fori_loop((low - begin) // keys, _blocks(high - begin, keys), visit, run)
    return run.weighted / jnp.maximum(run.total, 1e-30)[..., None]


class _Distances(NamedTuple):
    """`RelativeScores`, heads first, and padded as queries and keys are."""

    relative: RelativeScores
    by_query: jax.Array | None
    by_key: jax.Array | None

    @classmethod
    def of(cls, relative: RelativeScores, size: int, keys: int) -> "_Distances":
        by_query = None if relative.by_query is None else _heads_first(relative.by_query, size)
        by_key = None if relative.by_key is None else _heads_first(relative.by_key, keys)
        return cls(relative, by_query, by_key)

    def scores(self, first: jax.Array, places: jax.Array, start: jax.Array, seen: jax.Array) -> jax.Array:
        """[N, Q, S], of queries at `places` from `first` on and keys at `seen` from `start` on."""
        by_query = None if self.by_query is None else _slice(self.by_query, first, len(places))
        by_key = None if self.by_key is None else _slice(self.by_key, start, len(seen))
        return scores_by_distance(by_query, by_key, self.relative.bucket(places[:, None] - seen))


def _heads_first(array: jax.Array, padding: int) -> jax.Array:
    """[N, T + padding, X] of [T, N, X]."""
    return jnp.pad(array, ((0, padding), (0, 0), (0, 0))).transpose(1, 0, 2)


def _slice(array: jax.Array, start: jax.Array, size: int) -> jax.Array:
    """`size` tokens of [N, T, H]."""
    return lax.dynamic_slice_in_dim(array, start, size, axis=1)


def _blocks(total: jax.Array, size: int) -> jax.Array:
    """Blocks of `size` that hold `total`."""
    return (total + (size - 1)) // size
