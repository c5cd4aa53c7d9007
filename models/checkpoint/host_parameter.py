"""Parameters that are put together on the host."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import jax
import numpy as np

from jaxllm.models.checkpoint.safetensors_file import aligned_empty
from jaxllm.models.layers.parameter import Merged, ParameterSpec, Part
from jaxllm.models.sharding import put
from jaxllm.pallas_kernels.linear import WeightLayout


@dataclass(frozen=True)
class Entries:
    """The part of a parameter's memory that one tensor becomes. Threads may pack different rows at the same time."""

    array: np.ndarray
    layout: WeightLayout
    """That of the whole parameter."""

    def pack(self, first: int, rows: np.ndarray) -> None:
        """Pack rows of the tensor from row `first` on: whole entries, or those at its end."""
        unit = self.layout.rows_per_entry
        self.layout.pack_into(self.array[first // unit : -(-(first + len(rows)) // unit)], rows)


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
        into, layout = self._of_layer(layer), self._spec.layout
        if part is None:
            layout.pack_into(into, tensor)
        elif _is_whole_entries(self._spec):
            unit = layout.rows_per_entry
            every = into.reshape(blocks, -1, *into.shape[1:])
            for block, rows in zip(every, tensor.reshape(blocks, -1, *tensor.shape[1:]), strict=True):
                layout.pack_into(block[part.start // unit : (part.start + part.size) // unit], rows)
            self._count(layer, len(tensor))
            return
        else:
            parts = self._parts.setdefault(layer, {})
            parts[part.start] = tensor
            if sum(map(len, parts.values())) < layout.shape[0]:
                return
            layout.pack_into(into, _joined(self._parts.pop(layer), blocks))
        self._missing -= 1

    def entries(self, layer: int | None, part: Part | None) -> Entries:
        """Where a tensor that has a place of its own is packed (see `has_own_entries`); then call `count`."""
        into, unit = self._of_layer(layer), self._spec.layout.rows_per_entry
        if part is not None:
            into = into[part.start // unit : (part.start + part.size) // unit]
        return Entries(into, self._spec.layout)

    def count(self, layer: int | None, part: Part | None) -> None:
        """Take a tensor as added whose rows have been packed into its entries."""
        if part is None:
            self._missing -= 1
        else:
            self._count(layer, part.size)

    def _of_layer(self, layer: int | None) -> np.ndarray:
        return self.array if layer is None else self.array[layer]

    def _count(self, layer: int | None, rows: int) -> None:
        self._rows[layer] = self._rows.get(layer, 0) + rows
        if self._rows[layer] == self._spec.layout.shape[0]:
            self._missing -= 1

    def to_device(self) -> jax.Array:
        """The parameter. This object is not used afterwards."""
        return put(self.array, self._spec.array.sharding)


def one_layer(spec: ParameterSpec) -> ParameterSpec:
    """One layer's part of a parameter of all layers, without a placement."""
    return replace(spec, array=jax.ShapeDtypeStruct(spec.array.shape[1:], spec.array.dtype))


def has_own_entries(spec: ParameterSpec, part: Part | None, blocks: int) -> bool:
    """Whether a tensor, or one part of the parameter, is packed into entries that lie together and are its own."""
    return spec.layout.is_packed and blocks == 1 and (part is None or _is_whole_entries(spec))


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
