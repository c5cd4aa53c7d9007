"""Reductions over a vocabulary that may be split over devices.

Sampling runs on each device for its part [R, V / devices] of the logits. What must be known of the whole is one number
per row, or per block of a row, so that logits never travel.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import Mesh

from jaxllm.models.sharding import MODEL, model_parallel, partition


@dataclass(frozen=True)
class Vocabulary:
    """The axis of the mesh that splits the vocabulary, for code that runs on one part of it; None where it is whole."""

    axis: str | None = None

    def total(self, values: Array) -> Array:
        """Sum over the parts."""
        return values if self.axis is None else lax.psum(values, self.axis)

    def largest(self, values: Array) -> Array:
        """Maximum over the parts."""
        return values if self.axis is None else lax.pmax(values, self.axis)

    def smallest(self, values: Array) -> Array:
        """Minimum over the parts."""
        return values if self.axis is None else lax.pmin(values, self.axis)

    def joined(self, values: Array) -> Array:
        """The parts' `values` [R, n] side by side: [R, devices * n]."""
        return values if self.axis is None else lax.all_gather(values, self.axis, axis=1, tiled=True)

    def size(self, part: int) -> int:
        """Size of the whole, from that of a part."""
        return part if self.axis is None else part * lax.axis_size(self.axis)

    def start(self, size: int) -> Array:
        """The first index that this part holds, of parts of `size`: int32 []."""
        return jnp.int32(0) if self.axis is None else lax.axis_index(self.axis) * size

    def place(self, index: Array, size: int) -> Array:
        """Where `index` lies in this part of `size`, and `size`, which is outside, if another part has it."""
        if self.axis is None:
            return index
        place = index - self.start(size)
        return jnp.where(place < 0, size, jnp.minimum(place, size))

    def take(self, values: Array, index: Array) -> Array:
        """`values[row, index[row]]`, wherever it lies: [R, ...] of `values` [R, n, ...] and `index` int32 [R]."""
        size, shape = values.shape[1], (-1, *(1,) * (values.ndim - 1))
        place = self.place(index, size).reshape(shape)
        found = jnp.take_along_axis(values, jnp.minimum(place, size - 1), axis=1)
        return self.total(jnp.where(place < size, found, 0))[:, 0]

    def take_several(self, values: Array, index: Array) -> Array:
        """`values[row, index[row, k]]`, wherever they lie: [R, K] of `values` [R, n] and `index` int32 [R, K]."""
        size = values.shape[1]
        place = self.place(index, size)
        found = jnp.take_along_axis(values, jnp.minimum(place, size - 1), axis=1)
        return self.total(jnp.where(place < size, found, 0))


WHOLE = Vocabulary()


def over_vocabulary(
    function: Callable[..., Any], mesh: Mesh | None, in_specs: Any, out_specs: Any
) -> Callable[..., Any]:
    """`function(*arguments, vocabulary=...)` on every device's part; without a mesh, on the whole.

    The specs say which arguments and results are split along the vocabulary (`SPLIT`) and which are whole (`SAME`).
    """
    if mesh is None or model_parallel(mesh) == 1:
        return partial(function, vocabulary=WHOLE)
    on_part = partial(function, vocabulary=Vocabulary(MODEL))
    return jax.shard_map(on_part, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


SPLIT, SAME = partition(None, "vocab"), partition()
