"""Parameters that are on the devices get the tensors of another checkpoint, or some of them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import jax
import numpy as np

from jaxllm.models.checkpoint.host_parameter import Entries, HostParameter, one_layer
from jaxllm.models.checkpoint.leaves import shown
from jaxllm.models.checkpoint.parameter_loader import ParameterLoader, layers_in
from jaxllm.models.checkpoint.weight_target import ParameterPath, Specs, WeightTarget
from jaxllm.models.errors import ModelError
from jaxllm.models.layers.parameter import ParameterSpec
from jaxllm.models.sharding import put

if TYPE_CHECKING:
    from jaxllm.models.checkpoint.matching import Found
    from jaxllm.pallas_kernels.linear.weight_type import QuantizedMatrix

_Key = tuple[ParameterPath, int | None]
_Piece = tuple[WeightTarget, np.ndarray]


class ParameterReloader(ParameterLoader):
    """Replaces some parameters, whole or in part. What is not replaced stays as it is.

    A parameter of several tensors is put together on the host, once the last of them has come; if some do not come, it
    keeps the rest of what it has (`finish`).
    """

    def __init__(self, specs: Specs, arrays: Mapping[ParameterPath, jax.Array]) -> None:
        """`arrays` are those on the devices, which are this object's from now on; none where all are to come."""
        super().__init__(specs)
        self.arrays.update(arrays)
        self._pieces: dict[_Key, list[_Piece]] = {}
        self.has_changed = False
        """Whether a parameter is another one than before."""

    def take(self, name: str, slot: WeightTarget, tensor: "np.ndarray | QuantizedMatrix") -> None:
        """See `ParameterLoader`. Raises `ModelError` for numbers that are not finite."""
        if isinstance(tensor, np.ndarray) and not all_finite(tensor):
            raise ModelError(f"tensor {name!r} has values that are not finite")
        super().take(name, slot, tensor)

    def replace(self, path: ParameterPath, make: Callable[[], jax.Array]) -> None:
        """Give a parameter the array that `make` returns."""
        # The old one goes before the new one comes.
        self.arrays.pop(path, None)
        self.has_changed = True
        self.arrays[path] = make()

    def add(self, slot: WeightTarget, values: np.ndarray) -> None:
        """See `ParameterLoader`."""
        before = self.arrays.get(slot.path)
        try:
            super().add(slot, values)
        finally:
            self.has_changed |= self.arrays.get(slot.path) is not before

    def packing_of(self, tensor: "Found", own: Sequence[WeightTarget]) -> Callable[[], Entries] | None:
        """None: what is there stays until all of a parameter has come."""
        return None

    def _add_to_host(self, slot: WeightTarget, values: np.ndarray) -> None:
        """Keep what comes until all of a parameter is there."""
        # Whoever gave the values may go on with their memory.
        self._pieces.setdefault((slot.path, None), []).append((slot, values))
        pieces = self._pieces[slot.path, None]
        layers = layers_in(slot, self._specs[slot.path])
        if sum(_rows(each) for each in pieces) == layers * self._specs[slot.path].layout.shape[0]:
            del self._pieces[slot.path, None]
            # The old one goes before the new one comes.
            self.arrays.pop(slot.path, None)
            parameter = HostParameter(self._specs[slot.path], layers)
            for own, rows in pieces:
                parameter.add(rows, own.layer, own.part, own.blocks)
            self.arrays[slot.path] = parameter.to_device()

    def _joined(self, slot: WeightTarget, values: np.ndarray) -> np.ndarray | None:
        pieces = self._pieces.setdefault((slot.path, slot.layer), [])
        pieces.append((slot, values))
        spec = one_layer(self._specs[slot.path])
        if sum(_rows(each) for each in pieces) < spec.layout.shape[0]:
            return None
        parameter = HostParameter(spec, 1)
        for own, rows in self._pieces.pop((slot.path, slot.layer)):
            parameter.add(rows, None, own.part, own.blocks)
        return parameter.array

    def finish(self) -> None:
        """No more tensors come: what was replaced in part gets the rest of what it had.

        Raises `ModelError` where there was nothing.
        """
        for path in dict.fromkeys(path for path, _ in self._pieces):
            if path not in self.arrays:
                raise ModelError(f"only some of the tensors of {shown(path)} were given, but it has no previous values")
            keys = [key for key in self._pieces if key[0] == path]
            pieces = [piece for key in keys for piece in self._pieces.pop(key)]
            spec = self._specs[path]
            self.has_changed = True
            whole = np.array(jax.device_get(self.arrays.pop(path)))
            _patch(whole, spec, pieces)
            self.arrays[path] = put(whole, spec.array.sharding)
        jax.block_until_ready(list(self.arrays.values()))

    def missing(self) -> list[str]:
        """Parameters that have no values."""
        return [shown(path) for path in self._specs if path not in self.arrays]


def all_finite(values: np.ndarray) -> bool:
    """Whether all numbers are, of those types that have others."""
    return values.dtype.kind in "iu" or bool(np.isfinite(values).all())


def _rows(piece: _Piece) -> int:
    """Rows of the parameter that a piece has."""
    return len(piece[1])


def _patch(whole: np.ndarray, spec: ParameterSpec, pieces: Sequence[_Piece]) -> None:
    """Write pieces into a parameter on the host, whose tensors may lie in any order of the layout's."""
    by_layer: dict[int | None, list[_Piece]] = {}
    for piece in pieces:
        by_layer.setdefault(piece[0].layer, []).append(piece)
    for layer, own in by_layer.items():
        into = whole if layer is None else whole[layer]
        # In the tensors' type: codes of 4 bits come two in a byte.
        rows, is_new = (np.zeros(spec.layout.shape, own[0][1].dtype) for _ in range(2))
        packed, marks, unmarked = (np.zeros_like(into) for _ in range(3))
        spec.layout.pack_into(unmarked, is_new)  # A code of 0 may be kept as another number.
        for slot, values in own:
            _place(rows, slot, values)
            _place(is_new, slot, np.full_like(values, 0xFF if values.dtype == np.uint8 else 1))
        spec.layout.pack_into(packed, rows)
        spec.layout.pack_into(marks, is_new)
        np.copyto(into, packed, where=marks != unmarked)


def _place(rows: np.ndarray, slot: WeightTarget, values: np.ndarray) -> None:
    """Put the values of a slot among the rows of its parameter."""
    if slot.part is None:
        rows[...] = values.reshape(rows.shape)
        return
    blocks = rows.reshape(slot.blocks, -1, *rows.shape[1:])
    blocks[:, slot.part.start : slot.part.start + slot.part.size] = values.reshape(slot.blocks, -1, *values.shape[1:])


def check_names(names: Iterable[str], seen: set[str]) -> None:
    """Note the names of tensors. Raises `ModelError` for one that has come before."""
    for name in names:
        if name in seen:
            raise ModelError(f"tensor {name!r} is given twice")
        seen.add(name)
