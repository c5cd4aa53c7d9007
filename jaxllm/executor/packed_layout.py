"""All host data of a step in one int32 vector: one transfer, a few slices on the device."""

from collections.abc import Mapping
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


class PackedLayout:
    """Where each named field lies in the vector. Fields are int32 or float32 (kept as their bits)."""

    def __init__(self, fields: Mapping[str, tuple[tuple[int, ...], Any]]) -> None:
        """`fields` maps a name to (shape, dtype); dtype is `np.int32` or `np.float32`."""
        self._places: dict[str, tuple[int, int, tuple[int, ...], np.dtype[Any]]] = {}
        self.size = 0
        for name, (shape, dtype) in fields.items():
            end = self.size + prod(shape)
            self._places[name] = (self.size, end, shape, np.dtype(dtype))
            self.size = end
        # Most fields are slices of the vector as they are.
        places = self._places.items()
        vectors = {name for name, (_, _, shape, dtype) in places if len(shape) == 1 and dtype == np.int32}
        self._vectors = [(name, begin, end) for name, (begin, end, _, _) in places if name in vectors]
        self._others = [name for name in self._places if name not in vectors]

    def host_buffer(self) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """A fresh vector of zeros, and for each field a view into it to be filled.

        Fresh for every step: the runtime may still read the previous one.
        """
        buffer = np.zeros(self.size, np.int32)
        views = {name: buffer[begin:end] for name, begin, end in self._vectors}
        for name in self._others:
            begin, end, shape, dtype = self._places[name]
            views[name] = buffer[begin:end].view(dtype).reshape(shape)
        return buffer, views

    def unpack(self, packed: jax.Array) -> dict[str, jax.Array]:
        """The fields of a packed int32 vector, inside a traced function."""
        fields = {}
        for name, (begin, end, shape, dtype) in self._places.items():
            field = packed[begin:end].reshape(shape)
            fields[name] = jax.lax.bitcast_convert_type(field, jnp.float32) if dtype == np.float32 else field
        return fields
