"""What a layer with entries writes in a step, and which units of the cache each token then sees."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from jaxllm.models.attention_plan import CompressedAttentionPlan
from jaxllm.models.forward_context import EntryPages
from jaxllm.models.layers.compressor import EntryParameters, RawParts, pooled, rotate_last
from jaxllm.models.layers.rope import rotation
from jaxllm.pallas_kernels.compressed_attention import EntryIndex, Units, choose_entries, read_units, write_units
from jaxllm.pallas_kernels.ragged_batch import RaggedBatch

Seen = tuple[jax.Array, jax.Array]
"""Units that each token sees, int32 [T, M], and how many of them count, the first ones, int32 [T]."""


@dataclass(frozen=True)
class Geometry:
    """How a layer lies in pages, see `Units`, and the longest request."""

    widest: int
    """Units of a token in the layers that keep the most."""
    shares: int
    entry_shares: int
    max_model_len: int


@dataclass(frozen=True)
class TokenRows:
    """The rows of tokens in a layer's pages."""

    units: Units
    page_size: int

    def places(self, rows: jax.Array, positions: jax.Array) -> jax.Array:
        """First units of the tokens of rows at these positions, int32."""
        return self.units.places(rows, positions // self.page_size, positions % self.page_size)

    def seen(self, batch: RaggedBatch, window: int) -> Seen:
        """The keys of each token's window, which ends with it; without a window of all tokens before it."""
        longest = batch.page_table.shape[1] * self.page_size
        size = min(window or longest, longest)
        counts = jnp.minimum(batch.positions + 1, size)
        positions = (batch.positions + 1 - counts)[:, None] + jnp.arange(size, dtype=jnp.int32)
        positions = jnp.minimum(positions, batch.positions[:, None])
        return self.places(batch.token_rows[:, None], positions), counts


@dataclass(frozen=True)
class Entries:
    """The entries of a layer."""

    plan: CompressedAttentionPlan
    geometry: Geometry
    batch: RaggedBatch
    tokens: TokenRows
    pages: EntryPages
    parameters: EntryParameters
    layer_units: int
    """Units of a layer of the cache."""

    @property
    def rate(self) -> int:
        """Tokens of a group."""
        assert self.plan.compression is not None
        return self.plan.compression.rate

    def places(self, rows: jax.Array, numbers: jax.Array) -> jax.Array:
        """First units of the entries of rows with these numbers: an entry is in the page of its group's last token."""
        first = jnp.asarray(self.pages.layer, jnp.int32) * self.layer_units
        units = self.tokens.units
        own = Units(self.pages.table, first, units.page_units, self.geometry.entry_shares, self.plan.entry_units)
        last, page_size = (numbers + 1) * self.rate - 1, self.tokens.page_size
        return own.places(rows, last // page_size, last % page_size // self.rate)

    def written(self, units: jax.Array) -> jax.Array:
        """`units` [S, H] with the entries of groups whose last token is one of the step's, which are written."""
        plan, batch, rate = self.plan, self.batch, self.rate
        made = plan.compression
        assert made is not None
        tokens = len(batch.positions)
        is_last = (batch.positions + 1) % rate == 0
        is_last &= jnp.arange(tokens, dtype=jnp.int32) < batch.num_tokens
        # Each row may end one more group than its tokens fill.
        most = min(tokens, tokens // rate + len(batch.kv_lens))
        (ends,) = jnp.nonzero(is_last, size=most, fill_value=tokens)
        is_group, ends = ends < tokens, jnp.minimum(ends, tokens - 1)
        rows, last = batch.token_rows[ends], batch.positions[ends]
        numbers, count = last // rate, made.parts * rate
        positions = last[:, None] + jnp.arange(1 - count, 1, dtype=jnp.int32)
        places = self.tokens.places(rows[:, None], jnp.maximum(positions, 0))
        raw = read_units(units, places + 1, plan.row_units - 1)
        longest, first = self.geometry.max_model_len, numbers * rate
        by = None if plan.rope is None else rotation(plan.rope, plan.rope_size, longest, first)
        parts = []
        for (values, weights), own in zip(RawParts.of(plan).split(raw), self.parameters, strict=False):
            assert own is not None
            entry = pooled(values, weights, own, made, numbers == 0, plan.norm.eps)
            parts.append(rotate_last(entry[:, None], plan.rope_size, by)[:, 0])
        entries = jnp.concatenate(parts, axis=-1)
        entries = jnp.pad(entries, ((0, 0), (0, plan.entry_units * plan.size - entries.shape[1])))
        return write_units(units, jnp.where(is_group, self.places(rows, numbers), len(units)), entries)

    def seen(self, units: jax.Array, index: EntryIndex | None) -> Seen:
        """The entries of groups that are complete once a token is there: all of them, or those that are chosen."""
        batch, made = self.batch, self.plan.compression
        assert made is not None
        visible = (batch.positions + 1) // self.rate
        count = max(batch.page_table.shape[1] * self.tokens.page_size // self.rate, 1)
        every = jnp.arange(count, dtype=jnp.int32)[None]
        rows = jnp.arange(len(batch.kv_lens), dtype=jnp.int32)[:, None]
        places = self.places(rows, every)
        if made.index is None or index is None or count <= made.index.top:
            return places[batch.token_rows], visible
        top = made.index.top
        numbers = choose_entries(index, units, places + 1, batch.token_rows, visible, batch.num_tokens, top)
        return places[batch.token_rows[:, None], numbers], jnp.minimum(visible, top)


def side_by_side(first: Seen, second: Seen) -> Seen:
    """What is seen of two kinds, those that count before any others."""
    (near, some), (far, more) = first, second
    column = jnp.arange(near.shape[1] + far.shape[1], dtype=jnp.int32)[None]
    in_near = jnp.broadcast_to(jnp.minimum(column, near.shape[1] - 1), (len(near), column.shape[1]))
    in_far = jnp.clip(column - some[:, None], 0, far.shape[1] - 1)
    near, far = jnp.take_along_axis(near, in_near, axis=1), jnp.take_along_axis(far, in_far, axis=1)
    return jnp.where(column < some[:, None], near, far), some + more
