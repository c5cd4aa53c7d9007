"""Parameters of a model from the tensors of a checkpoint.

Nothing here knows the model's modules: parameters are a flat mapping from nnx paths to what they are, and come back
as a mapping from the same paths to arrays.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from jaxllm.models.checkpoint.host_parameter import Entries, HostParameter, has_own_entries, one_layer
from jaxllm.models.checkpoint.read_ahead import read_ahead
from jaxllm.models.checkpoint.safetensors_file import Tensor
from jaxllm.models.checkpoint.tensor_source import Whole
from jaxllm.models.checkpoint.weight_target import ParameterPath, Specs, WeightTarget
from jaxllm.models.errors import ModelError
from jaxllm.models.layers.parameter import ParameterSpec
from jaxllm.models.sharding import put

if TYPE_CHECKING:
    from jaxllm.models.checkpoint.matching import Found, Matched
    from jaxllm.pallas_kernels.linear.weight_type import QuantizedMatrix

Progress = Callable[[int, int], None]


class Change(Protocol):
    """What is made of values that were read, before they are in their parameter's type."""

    def changes(self, target: WeightTarget) -> bool:
        """Whether a target has other values."""
        ...

    def merged(self, target: WeightTarget, values: np.ndarray) -> np.ndarray:
        """The other values, from those of the checkpoint in float32."""
        ...


def load_arrays(
    tensors: "Matched",
    specs: Specs,
    progress: Progress | None = None,
    filling: "ParameterLoader | None" = None,
    change: Change | None = None,
) -> dict[ParameterPath, jax.Array]:
    """Read a checkpoint, tensor by tensor, each to its parameter's type and straight to the devices.

    Each device gets only its part of a parameter that is split over devices. Where devices are those of several
    hosts, rows that are only for others are not read. Host memory beyond the result is the tensors of one parameter,
    and what `read_ahead` has read beyond them; tensors that are only packed need none. `filling` takes them, if one has
    begun already. With a `change` parameters have other values. Raises `ModelError`.
    """
    total = sum(tensor.num_bytes for tensor, _ in tensors)
    filling = ParameterLoader(specs, change) if filling is None else filling
    done = 0
    wanted = (
        (tensor, np.dtype(np.float32), None)
        if change is not None and any(map(change.changes, own))
        else (tensor, _read_as(own, specs), filling.packing_of(tensor, own) or _rows_here(tensor, own, specs))
        for tensor, own in tensors
    )
    with closing(read_ahead(wanted)) as read:
        for (_, own), (tensor, values) in zip(tensors, read, strict=True):
            for slot in own:
                if isinstance(values, Entries):
                    filling.take_packed(slot)
                else:
                    filling.take(tensor.name, slot, values)
            done += tensor.num_bytes
            if progress:
                progress(done, total)
    return filling.arrays


def _read_as(own: Sequence[WeightTarget], specs: Specs) -> np.dtype[Any]:
    """The type that a tensor is read in. All its parameters have one, but for matrices that are yet to be rounded."""
    is_rounded = any(specs[slot.path].matrix is not None for slot in own)
    return np.dtype(np.float32 if is_rounded else specs[own[0].path].array.dtype)


def _rows_here(tensor: "Found", own: Sequence[WeightTarget], specs: Specs) -> npt.NDArray[np.bool_] | None:
    """Which rows of a tensor the devices of this host hold parts of, bool [rows]; None: all, or it is hard to say."""
    if type(tensor) is not Tensor or len(own) > 1 or not isinstance(own[0].take, Whole):
        return None
    slot, spec = own[0], specs[own[0].path]
    where, shape = spec.array.sharding, spec.array.shape
    axis = 0 if slot.layer is None else 1
    if (
        where is None
        or spec.matrix is not None
        or where.is_fully_addressable
        or shape[axis:] != spec.layout.shape
        or slot.rows.columns is not None
    ):
        return None
    held = np.zeros(shape[axis], np.bool_)
    for index in where.addressable_devices_indices_map(shape).values():
        held[index[axis]] = True
    if slot.part is not None:
        held = held.reshape(slot.blocks, -1)[:, slot.part.start : slot.part.start + slot.part.size].reshape(-1)
    # For each row of the parameter, the index of the tensor's row that it is made of.
    made_of = slot.rows.expand(np.arange(tensor.shape[0]))
    rows = np.zeros(tensor.shape[0], np.bool_)
    rows[made_of[held]] = True
    return rows


class ParameterLoader:
    """Parameters that become complete, on the devices."""

    def __init__(self, specs: Specs, change: Change | None = None) -> None:
        self._change = change
        self.arrays: dict[ParameterPath, jax.Array] = {}
        self._specs = specs
        self._incomplete: dict[ParameterPath, HostParameter] = {}
        self._layers: dict[tuple[ParameterPath, int | None], HostParameter] = {}
        self._orders: dict[tuple[ParameterPath, int | None], np.ndarray] = {}

    def packing_of(self, tensor: "Found", own: Sequence[WeightTarget]) -> Callable[[], Entries] | None:
        """What gives the memory that a tensor's rows can be packed into as they are read; None: `take` it instead.

        Those are tensors that become the rows of one parameter, or of a part of it, as they are.
        """
        slot, spec = own[0], self._specs[own[0].path]
        where = spec.array.sharding
        is_plain = type(tensor) is Tensor and len(tensor.shape) == 2 and spec.matrix is None
        is_here = where is None or where.is_fully_addressable
        as_it_is = len(own) == 1 and isinstance(slot.take, Whole) and slot.rows.is_identity
        if is_plain and is_here and as_it_is and has_own_entries(spec, slot.part, slot.blocks):
            return partial(self._entries, slot)
        return None

    def _entries(self, slot: WeightTarget) -> Entries:
        return self._on_host(slot).entries(slot.layer, slot.part)

    def take_packed(self, slot: WeightTarget) -> None:
        """Take a slot as filled whose tensor has been packed into what `packing_of` gave."""
        self._on_host(slot).count(slot.layer, slot.part)
        self._put_if_complete(slot)

    def take(self, name: str, slot: WeightTarget, tensor: "np.ndarray | QuantizedMatrix") -> None:
        """Put what a slot has of the tensor called `name` where it belongs."""
        spec = self._specs[slot.path]
        if isinstance(tensor, np.ndarray) and self._change is not None and self._change.changes(slot):
            values = self._change.merged(slot, slot.rows.expand(slot.take(tensor, slot.shape)))
            self.add(slot, values.astype(spec.array.dtype))
            return
        if isinstance(tensor, np.ndarray) and spec.matrix is None:
            own = tensor.astype(spec.array.dtype, copy=False)
            self.add(slot, slot.rows.expand(slot.take(own, slot.shape)))
            return
        # Most checkpoints are not quantized: starts are faster without the import.
        from jaxllm.models.checkpoint.quantized_tensors import arrays_of, widened_rows

        if spec.matrix is None:
            assert not isinstance(tensor, np.ndarray)
            self.add(slot, widened_rows(slot, tensor, np.dtype(spec.array.dtype)))
            return
        for part, array in arrays_of(name, slot, spec, tensor):
            if self._specs[part.path].name != "order" or self._is_first_order(name, part, array):
                self.add(part, array)

    def _is_first_order(self, name: str, slot: WeightTarget, order: np.ndarray) -> bool:
        """Whether a matrix has no order of inputs yet. Raises `ModelError` where it has another one."""
        known = self._orders.setdefault((slot.path, slot.layer), order)
        if known is not order and not np.array_equal(known, order):
            raise ModelError(
                f"tensor {name!r}: the order of its inputs differs from that of the matrices multiplied together with "
                "it"
            )
        return known is order

    def add(self, slot: WeightTarget, values: np.ndarray) -> None:
        """Put the values of a slot where they belong."""
        spec, arrays = self._specs[slot.path], self.arrays
        array = spec.array
        is_small = slot.layer is not None and len(spec.layout.shape) == 1
        if spec.layout.is_packed or is_small or (slot.part is not None and slot.layer is None):
            self._add_to_host(slot, values)
        elif slot.layer is not None:
            self._write(slot, values)
        else:
            # Where one is replaced, it goes before the new one comes.
            arrays.pop(slot.path, None)
            arrays[slot.path] = put(values, array.sharding)
        if slot.path in arrays:
            # Without waiting, host copies of the tensors would queue up after a slow device.
            arrays[slot.path].block_until_ready()

    def _add_to_host(self, slot: WeightTarget, values: np.ndarray) -> None:
        """Put values into a parameter on the host, and that on the devices when it is complete."""
        self._on_host(slot).add(values, slot.layer, slot.part, slot.blocks)
        self._put_if_complete(slot)

    def _on_host(self, slot: WeightTarget) -> HostParameter:
        """The parameter of a slot, as far as it is there."""
        if slot.path not in self._incomplete:
            spec = self._specs[slot.path]
            self._incomplete[slot.path] = HostParameter(spec, layers_in(slot, spec))
        return self._incomplete[slot.path]

    def _put_if_complete(self, slot: WeightTarget) -> None:
        if self._incomplete[slot.path].is_complete:
            self.arrays[slot.path] = self._incomplete.pop(slot.path).to_device().block_until_ready()

    def _write(self, slot: WeightTarget, values: np.ndarray) -> None:
        """Write a layer into a parameter of all layers on the devices, or part of it."""
        array, arrays = self._specs[slot.path].array, self.arrays
        start, blocks = (0, 1) if slot.part is None else (slot.part.start, slot.blocks)
        if slot.part is not None and slot.part.expert is not None:
            # Experts are whole on a device, or many small writes: a layer is put together here.
            whole = self._joined(slot, values)
            if whole is None:
                return
            values, start, blocks = whole, 0, 1
        if slot.path not in arrays:
            arrays[slot.path] = jnp.zeros(array.shape, array.dtype, device=array.sharding)
        part = put(values, _without_layers(array.sharding))
        arrays[slot.path] = _write(arrays.pop(slot.path), part, slot.layer, start, blocks=blocks)

    def _joined(self, slot: WeightTarget, values: np.ndarray) -> np.ndarray | None:
        """The parameter of one layer, when the last of its tensors has come."""
        key = (slot.path, slot.layer)
        if key not in self._layers:
            self._layers[key] = HostParameter(one_layer(self._specs[slot.path]), 1)
        self._layers[key].add(values, None, slot.part, slot.blocks)
        return self._layers.pop(key).array if self._layers[key].is_complete else None


def layers_in(slot: WeightTarget, spec: ParameterSpec) -> int:
    """Layers of a parameter."""
    return 1 if slot.layer is None else int(spec.array.shape[0])


def _without_layers(sharding: Any) -> NamedSharding | None:
    """Where one layer's part of a stacked parameter goes."""
    return NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[1:])) if sharding is not None else None


@partial(jax.jit, donate_argnums=0, static_argnames="blocks")
def _write(whole: jax.Array, tensor: jax.Array, layer: jax.Array, start: jax.Array, *, blocks: int) -> jax.Array:
    """Put a tensor into a parameter of all layers: that of layer `layer`, from row `start` of each of its blocks on."""
    every = whole.reshape(whole.shape[0], blocks, -1, *whole.shape[2:])
    part = tensor.reshape(1, blocks, -1, *tensor.shape[1:])
    zeros = (0,) * (part.ndim - 3)
    updated: jax.Array = lax.dynamic_update_slice(every, part, (layer, 0, start, *zeros))
    return updated.reshape(whole.shape)
