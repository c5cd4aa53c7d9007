"""The work of a computing warpgroup on a unit: an online softmax over tiles of keys."""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxllm.pallas_kernels.paged_attention.gpu.operations import Operations
from jaxllm.pallas_kernels.paged_attention.gpu.options import ROWS, WARPGROUPS, KernelOptions

MASKED = -1e30
"""Score of an invisible key."""

LOWEST = -1e15
"""Where the maximum of scores begins. It is so far above `MASKED` that invisible keys weigh nothing, also in a tile
without any visible key, and however the difference of the two is rounded."""

LOG2E = math.log2(math.e)
"""The softmax is computed in base 2: one multiplication per score less."""


@dataclass(frozen=True)
class Unit:
    """Queries that follow each other in one row of the batch, and the keys they look at."""

    table: jax.Array
    """Where the row's pages begin in the page table."""
    token: jax.Array
    """The first query, on the token axis."""
    position: jax.Array
    """Its position in the request."""
    first: jax.Array
    """First tile of keys."""
    end: jax.Array
    """After the last tile of keys."""
    window: jax.Array
    """A query at position p sees no key at or before p - window."""
    used: jax.Array
    """Places of units that are used, the same in every unit."""

    @classmethod
    def read(cls, units: Any, index: jax.Array) -> "Unit":
        """Unit `index` of the flattened array of units."""
        return cls(*(units[index * 8 + field] for field in range(7)))


_State = tuple[jax.Array, jax.Array, jax.Array]
"""Weighted values [ROWS, H], maximum [ROWS] and total [ROWS] of an online softmax."""


@dataclass(frozen=True)
class Warpgroup:
    """One of the computing warpgroups of a block."""

    options: KernelOptions
    inputs: Any
    number: jax.Array
    scratch: dict[str, Any]

    @property
    def ops(self) -> Operations:
        """Operations on tiles in registers."""
        return Operations(self.options.interpret)

    def attend(
        self, item: jax.Array, head: jax.Array, unit: Unit, counter: jax.Array, *, out: Any, out_sums: Any
    ) -> None:
        """Compute this warpgroup's part of a unit for one KV head and write it.

        `item` is the place in the output; `counter` tiles went through the ring before.
        """
        options, ops = self.options, self.ops
        ahead = jnp.int32(0) if options.decode else self.number * options.tokens
        tokens = (self.inputs.queries.shape[0] - 2 * ROWS) // (options.num_kv_heads * options.group)
        io, sums = self.scratch["io"].at[self.number], self.scratch["sums"].at[self.number]
        io[...] = ops.load(self.inputs.queries, (head * tokens + unit.token + ahead) * options.group, ROWS)
        plgpu.commit_smem()
        rows = _Rows(
            position=unit.position + ahead + lax.div(ops.row_numbers(ROWS), jnp.int32(options.group)),
            window=unit.window,
            slope=ops.load_rows(self.inputs.slopes, head * ROWS, ROWS) if options.alibi else None,
            scale=self.inputs.scale[0],
        )
        acc, maximum, total = self._visit_tiles(unit, unit.position + ahead, counter, rows)

        empty = total == 0.0
        divisor = jnp.where(empty, 1.0, total)
        io[...] = (acc * ops.across(1.0 / divisor, acc.shape)).astype(io.dtype)
        sums[...] = jnp.where(empty, MASKED, maximum + jnp.log(divisor) * LOG2E)
        plgpu.commit_smem()
        place = item * WARPGROUPS + self.number
        written = pl.ds(pl.multiple_of(place * options.out_rows, 8), options.out_rows)
        plgpu.copy_smem_to_gmem(io.at[pl.ds(0, options.out_rows)], out.at[written])
        plgpu.copy_smem_to_gmem(sums, out_sums.at[pl.ds(pl.multiple_of(place * ROWS, ROWS), ROWS)])
        plgpu.wait_smem_to_gmem(0)

    def _visit_tiles(self, unit: Unit, position: jax.Array, counter: jax.Array, rows: "_Rows") -> _State:
        """Walk over the tiles that are this warpgroup's: all of them, or every second one."""
        options, ops = self.options, self.ops
        step = WARPGROUPS if options.decode else 1
        first = lax.rem(counter + self.number, jnp.int32(WARPGROUPS)) if options.decode else jnp.int32(0)

        def visits(end: jax.Array) -> jax.Array:
            """How many of this warpgroup's tiles lie before tile `end`."""
            return lax.div(jnp.maximum(end - unit.first - first, 0) + (step - 1), jnp.int32(step))

        def visit(index: jax.Array, state: _State, *, masked: bool) -> _State:
            turn = first + index * step
            slot = lax.rem(counter + turn, jnp.int32(options.stages))
            return self._tile((unit.first + turn) * options.tile, slot, rows, state, masked=masked)

        def visit_full(index: jax.Array, state: _State) -> _State:
            return visit(index, state, masked=options.windowed)

        def visit_masked(index: jax.Array, state: _State) -> _State:
            return visit(index, state, masked=True)

        # Before `full`, every key of a tile is visible to the first query, and so to all.
        full = jnp.minimum(lax.div(position + 1, jnp.int32(options.tile)), unit.end)
        state = (ops.full((ROWS, options.head_size), 0.0), ops.full_rows(ROWS, LOWEST), ops.full_rows(ROWS, 0.0))
        if options.alternates:
            pl.when(self.number == 1)(self._meet)
        state = lax.fori_loop(0, visits(full), visit_full, state)
        state = lax.fori_loop(visits(full), visits(unit.end), visit_masked, state)
        if options.alternates:
            pl.when(self.number == 0)(self._meet)
        return state

    def _tile(self, first_key: jax.Array, slot: jax.Array, rows: "_Rows", state: _State, *, masked: bool) -> _State:
        """One tile of keys, which begins at position `first_key` and lies in `slot` of the ring."""
        options, ops, scratch = self.options, self.ops, self.scratch
        acc, maximum, total = state
        keys = self._take("keys", slot)
        products = ops.scores(scratch["io"].at[self.number], keys, self._meet)
        self._release("keys", slot)
        scores, factor = rows.scores(options, ops, products, first_key, masked=masked)

        # The factor is applied after the maximum and together with the difference: one fused operation per score.
        new_maximum = jnp.maximum(maximum, scores.max(axis=1) * factor)
        decay = jnp.exp2(maximum - new_maximum)
        weights = jnp.exp2(scores * factor - ops.across(new_maximum, scores.shape))
        total = total * decay + weights.sum(axis=1)
        acc = acc * ops.across(decay, acc.shape)
        narrow = weights.astype(options.dtype)
        if options.alternates:
            # All of this softmax is to be done before the other warpgroup is let into its own.
            acc, total, new_maximum, narrow = lax.optimization_barrier((acc, total, new_maximum, narrow))
            plgpu.barrier_arrive(scratch["turn"])
        values = self._take("values", slot)
        if options.alternates:
            plgpu.barrier_wait(scratch["turn"])
        acc = ops.accumulate(acc, narrow, values)
        self._release("values", slot)
        return acc, new_maximum, total

    def _meet(self) -> None:
        """Wait for the other warpgroup, where they alternate. One is half a tile after: their phases interleave."""
        if self.options.alternates:
            plgpu.barrier_arrive(self.scratch["turn"])
            plgpu.barrier_wait(self.scratch["turn"])

    def _take(self, name: str, slot: jax.Array) -> Any:
        """Wait for a tile; a reference to what can be multiplied."""
        plgpu.barrier_wait(self.scratch[name + "_full"].at[slot])
        tile = self.scratch[name].at[slot]
        if not self.options.converts:
            return tile
        converted = self.scratch["converted"].at[self.number]
        size = self.options.head_size
        columns = self.options.columns
        part = columns if size % columns == 0 else size
        for column in range(0, size, part):
            place = (slice(None), pl.ds(column, part))
            converted[place] = self.ops.convert(tile.at[place], self.options.dtype)
        plgpu.commit_smem()
        return converted

    def _release(self, name: str, slot: jax.Array) -> None:
        """Give a tile's place back, once it has been multiplied."""
        plgpu.barrier_arrive(self.scratch[name + "_free"].at[slot])


@dataclass(frozen=True)
class _Rows:
    """A warpgroup's facts about its query rows."""

    position: jax.Array
    """int32 [ROWS]."""
    window: jax.Array
    slope: jax.Array | None
    """float32 [ROWS]."""
    scale: jax.Array
    """float32 []."""

    def scores(
        self, options: KernelOptions, ops: Operations, products: jax.Array, first_key: jax.Array, *, masked: bool
    ) -> tuple[jax.Array, jax.Array]:
        """Scores [ROWS, tile] of `products`, and the positive factor that makes them base-2 scores."""
        shape = (ROWS, options.tile)
        scores, factor = products, self.scale
        if options.soft_cap is not None:
            scores, factor = jnp.tanh(scores * factor), jnp.float32(options.soft_cap * LOG2E)
        if self.slope is not None:
            distance = ops.column_numbers(shape) + ops.across(first_key - self.position, shape)
            scores = scores * factor + ops.across(self.slope, shape) * distance.astype(jnp.float32)
            factor = jnp.float32(1.0)
        if masked:
            column = ops.column_numbers(shape)
            last = self.position - first_key
            visible = column <= ops.across(last, shape)
            if options.windowed:
                visible &= column > ops.across(last - self.window, shape)
            scores = jnp.where(visible, scores, MASKED)
        return scores, factor
