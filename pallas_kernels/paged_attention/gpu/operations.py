"""Operations of the kernel on whole tiles in registers: on the device, and in JAX's interpreter of Mosaic GPU.

The interpreter (JAX 0.10) knows copies, barriers, warpgroups and shared memory, but neither register layouts nor a
wgmma with operands in registers or transposed. Those few operations stand here once for each.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu


@dataclass(frozen=True)
class Operations:
    """Operations on [rows, columns] tiles, distributed over a warpgroup as wgmma wants them."""

    interpret: bool

    def load(self, ref: Any, start: jax.Array, rows: int) -> jax.Array:
        """`rows` rows of a matrix in global memory, from any row on."""
        if self.interpret:
            return ref[pl.ds(start, rows), :]
        return plgpu.load(ref, (pl.ds(start, rows), slice(None)), layout=plgpu.Layout.WGMMA, optimized=False)

    def load_rows(self, ref: Any, start: jax.Array, rows: int) -> jax.Array:
        """One value per row, from a vector in global memory."""
        if self.interpret:
            return ref[pl.ds(start, rows)]
        return plgpu.load(ref, (pl.ds(start, rows),), layout=plgpu.Layout.WGMMA.reduce(1), optimized=False)

    def convert(self, ref: Any, dtype: str) -> jax.Array:
        """A tile of 8-bit numbers in shared memory, as `dtype`."""
        if self.interpret:
            return ref[...].astype(dtype)
        # In this layout a thread loads 4 bytes at once, which become what it holds of a 16-bit tile.
        tile = plgpu.load(ref, (), layout=plgpu.Layout.WGMMA_UPCAST_2X, optimized=False)
        return plgpu.layout_cast(tile.astype(dtype), plgpu.Layout.WGMMA)

    def full(self, shape: tuple[int, int], value: float) -> jax.Array:
        """A float32 tile of one value."""
        tile = jnp.full(shape, value, jnp.float32)
        return tile if self.interpret else plgpu.layout_cast(tile, plgpu.Layout.WGMMA)

    def full_rows(self, rows: int, value: float) -> jax.Array:
        """A float32 value per row."""
        vector = jnp.full((rows,), value, jnp.float32)
        return vector if self.interpret else plgpu.layout_cast(vector, plgpu.Layout.WGMMA.reduce(1))

    def row_numbers(self, rows: int) -> jax.Array:
        """0, 1, ... per row."""
        if self.interpret:
            return jnp.arange(rows, dtype=jnp.int32)
        return plgpu.broadcasted_iota(jnp.int32, (rows,), 0, layout=plgpu.Layout.WGMMA.reduce(1))

    def column_numbers(self, shape: tuple[int, int]) -> jax.Array:
        """0, 1, ... in every row of a tile."""
        if self.interpret:
            return lax.broadcasted_iota(jnp.int32, shape, 1)
        return plgpu.broadcasted_iota(jnp.int32, shape, 1, layout=plgpu.Layout.WGMMA)

    def across(self, rows: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        """A value per row, repeated in all columns."""
        return lax.broadcast_in_dim(rows, shape, [0])

    def scores(self, queries: Any, keys: Any, issued: Callable[[], None]) -> jax.Array:
        """`queries @ keys.T` in float32; both lie in shared memory. `issued` is called while it is computed."""
        shape = (queries.shape[0], keys.shape[0])
        if self.interpret:
            issued()
            return jnp.dot(queries[...], keys[...].T, preferred_element_type=jnp.float32)

        def compute(acc: Any) -> jax.Array:
            plgpu.wgmma(acc, queries, plgpu.transpose_ref(keys, (1, 0)))
            issued()
            return acc[...]

        return pl.run_scoped(compute, plgpu.WGMMAAccumulatorRef(shape, jnp.float32))

    def accumulate(self, acc: jax.Array, weights: jax.Array, values: Any) -> jax.Array:
        """`acc + weights @ values`; the weights are in registers, the values in shared memory."""
        if self.interpret:
            return acc + jnp.dot(weights, values[...], preferred_element_type=jnp.float32)

        def compute(ref: Any) -> None:
            plgpu.wgmma(ref, weights, values)

        return pl.run_state(compute)(plgpu.WGMMAAccumulatorRef.init(acc))
