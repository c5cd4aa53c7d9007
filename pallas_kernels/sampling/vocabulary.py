"""Reductions over a vocabulary that may be split over devices: each holds a part [R, V / devices] of the logits."""

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array, lax


@dataclass(frozen=True)
class Vocabulary:
    """The axis of the mesh that splits the vocabulary, for code that runs on one part of it; None where it is whole."""

    axis: str | None = None

    @property
    def devices(self) -> int:
        """Parts that there are."""
        return 1 if self.axis is None else lax.axis_size(self.axis)

    def total(self, values: Array) -> Array:
        """Sum over the parts."""
        return values if self.axis is None else lax.psum(values, self.axis)

    def largest(self, values: Array) -> Array:
        """Maximum over the parts."""
        return values if self.axis is None else lax.pmax(values, self.axis)

    def smallest(self, values: Array) -> Array:
        """Minimum over the parts."""
        return values if self.axis is None else lax.pmin(values, self.axis)

    def gather(self, values: Array) -> Array:
        """The parts' `values` [R, n] side by side: [R, devices * n]."""
        return values if self.axis is None else lax.all_gather(values, self.axis, axis=1, tiled=True)

    def size(self, part: int) -> int:
        """Size of the whole, from that of a part."""
        return part * self.devices

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

    def whole_rows(self, values: Array) -> Array:
        """Some rows from end to end in place of a part of all: [R / devices, devices * n] of `values` [R, n].

        R is a multiple of the devices.
        """
        return values if self.axis is None else lax.all_to_all(values, self.axis, 0, 1, tiled=True)

    def local_rows(self, values: Array) -> Array:
        """The rows of `values` [R, ...], the same on all devices, that this device gets from `whole_rows`."""
        if self.axis is None:
            return values
        count = values.shape[0] // self.devices
        return lax.dynamic_slice_in_dim(values, lax.axis_index(self.axis) * count, count)

    def gather_rows(self, values: Array) -> Array:
        """The rows of all devices, [R, ...], from those of each: [R / devices, ...]."""
        return values if self.axis is None else lax.all_gather(values, self.axis, axis=0, tiled=True)


WHOLE = Vocabulary()
