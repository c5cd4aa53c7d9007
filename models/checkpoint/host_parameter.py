"""Parameters that are put together on the host."""

from collections.abc import Mapping

import jax
import numpy as np

from jaxllm.models.checkpoint.safetensors_file import aligned_empty
from jaxllm.models.layers.parameter import ParameterSpec, Part


def whole_parameter(spec: ParameterSpec, tensor: np.ndarray) -> jax.Array:
    """A parameter of one layer from the one tensor that it holds."""
    if not spec.layout.is_packed:
        return jax.device_put(tensor.astype(spec.array.dtype), spec.array.sharding)
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
        self._array = aligned_empty(spec.array.shape, np.dtype(spec.array.dtype))
        self._parts: dict[int | None, dict[int, np.ndarray]] = {}

    @property
    def is_complete(self) -> bool:
        """Whether nothing is missing."""
        return not self._missing

    def add(self, tensor: np.ndarray, layer: int | None, part: Part | None, blocks: int) -> None:
        """Take the rows of a layer, or of those one part, which begins somewhere in each of its `blocks` blocks."""
        if part is not None:
            parts = self._parts.setdefault(layer, {})
            parts[part.start] = tensor
            if sum(map(len, parts.values())) < self._spec.layout.shape[0]:
                return
            tensor = _joined(self._parts.pop(layer), blocks)
        into = self._array if layer is None else self._array[layer]
        self._spec.layout.pack_into(into, tensor)
        self._missing -= 1

    def to_device(self) -> jax.Array:
        """The parameter. This object is not used afterwards."""
        return jax.device_put(self._array, self._spec.array.sharding)


def _joined(parts: Mapping[int, np.ndarray], blocks: int) -> np.ndarray:
    """A parameter from what it holds, by the rows of a block where each begins."""
    each = [parts[start].reshape(blocks, -1, *parts[start].shape[1:]) for start in sorted(parts)]
    return np.concatenate(each, axis=1).reshape(-1, *each[0].shape[2:])
