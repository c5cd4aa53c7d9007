"""Parameters that are put together on the host."""

from collections.abc import Mapping
from dataclasses import replace

import jax
import numpy as np

from jaxllm.models.checkpoint.safetensors_file import aligned_empty
from jaxllm.models.layers.parameter import Merged, ParameterSpec, Part
from jaxllm.models.sharding import put


def whole_parameter(spec: ParameterSpec, tensor: np.ndarray) -> jax.Array:
    """A parameter of one layer from the one tensor that it holds."""
    if not spec.layout.is_packed:
        return put(tensor.astype(spec.array.dtype), spec.array.sharding)
    parameter = HostParameter(spec, 1)
    parameter.add(tensor.astype(spec.array.dtype), None, None, 1)
    return parameter.to_device()


class HostParameter:
    """Memory for a parameter, and the tensors that have come so far.

    On the devices, putting tensors together would take a compilation for every shape, in every start. A device that
    is the host's processor takes the memory as it is.
    """

    def __init__(self, spec: ParameterSpec, layers: int) -> None:
        self._spec, self._missing = spec, layers
        self.array = aligned_empty(spec.array.shape, np.dtype(spec.array.dtype))
        self._parts: dict[int | None, dict[int, np.ndarray]] = {}
        self._rows: dict[int | None, int] = {}

    @property
    def is_complete(self) -> bool:
        """Whether nothing is missing."""
        return not self._missing

    def add(self, tensor: np.ndarray, layer: int | None, part: Part | None, blocks: int) -> None:
        """Take the rows of a layer, or of those one part, which begins somewhere in each of its `blocks` blocks."""
        into = self.array if layer is None else self.array[layer]
        layout = self._spec.layout
        if part is None:
            layout.pack_into(into, tensor)
        elif _is_whole_entries(self._spec):
            unit = layout.rows_per_entry
            every = into.reshape(blocks, -1, *into.shape[1:])
            for block, rows in zip(every, tensor.reshape(blocks, -1, *tensor.shape[1:]), strict=True):
                layout.pack_into(block[part.start // unit : (part.start + part.size) // unit], rows)
            self._rows[layer] = self._rows.get(layer, 0) + len(tensor)
            if self._rows[layer] < layout.shape[0]:
                return
        else:
            parts = self._parts.setdefault(layer, {})
            parts[part.start] = tensor
            if sum(map(len, parts.values())) < layout.shape[0]:
                return
            layout.pack_into(into, _joined(self._parts.pop(layer), blocks))
        self._missing -= 1

    def to_device(self) -> jax.Array:
        """The parameter. This object is not used afterwards."""
        return put(self.array, self._spec.array.sharding)


def one_layer(spec: ParameterSpec) -> ParameterSpec:
    """One layer's part of a parameter of all layers, without a placement."""
    return replace(spec, array=jax.ShapeDtypeStruct(spec.array.shape[1:], spec.array.dtype))


def _is_whole_entries(spec: ParameterSpec) -> bool:
    """Whether the tensors of a parameter begin and end where entries of its array do."""
    unit, rows = spec.layout.rows_per_entry, spec.rows
    if unit == 1:
        return True
    return isinstance(rows, Merged) and rows.blocks == 1 and not any(part.size % unit for part in rows.parts)


def _joined(parts: Mapping[int, np.ndarray], blocks: int) -> np.ndarray:
    """A parameter from what it holds, by the rows of a block where each begins."""
    each = [parts[start].reshape(blocks, -1, *parts[start].shape[1:]) for start in sorted(parts)]
    return np.concatenate(each, axis=1).reshape(-1, *each[0].shape[2:])
