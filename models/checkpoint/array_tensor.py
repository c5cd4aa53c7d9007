"""Tensors that are arrays in memory, as a trainer has them, under the names of a checkpoint."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np

from jaxllm.models.checkpoint.safetensors_file import DTYPES, Tensor
from jaxllm.models.errors import ModelError

_KINDS = {
    **{dtype: kind for kind, dtype in DTYPES.items()},
    **{np.dtype(kind): kind[0].upper() + kind[-2:].lstrip("t") for kind in ("int8", "int16", "int32", "int64")},
    **{np.dtype(kind): kind[0].upper() + kind[-2:].lstrip("t") for kind in ("uint8", "uint16", "uint32")},
    np.dtype(ml_dtypes.float8_e4m3fn): "F8_E4M3",
    np.dtype(ml_dtypes.float8_e5m2): "F8_E5M2",
}
"""Types of arrays, as safetensors calls them."""


class HostValues:
    """The values of an array on the host: those of a device are brought there when they are first read."""

    def __init__(self, given: Any) -> None:
        self._given = given
        self._bytes: np.ndarray | None = None

    def bytes(self) -> np.ndarray:
        """All of them, uint8 [bytes], in the order of a file."""
        if self._bytes is None:
            array = np.ascontiguousarray(_on_host(self._given))
            self._bytes = array.reshape(-1).view(np.uint8)
        return self._bytes

    def release(self) -> None:
        """Forget what was brought to the host."""
        self._bytes = None


@dataclass(frozen=True)
class ArrayTensor(Tensor):
    """A tensor in memory. Reading it copies: the array may change afterwards."""

    values: HostValues

    @classmethod
    def of(cls, name: str, array: Any, source: str) -> "ArrayTensor":
        """An array of NumPy or JAX, or what NumPy makes one of; errors name the `source`. Raises `ModelError`."""
        if not hasattr(array, "dtype") or not hasattr(array, "shape"):
            raise ModelError(f"{source}: tensor {name!r} is a {type(array).__name__}, expected an array")
        try:
            dtype = np.dtype(array.dtype)
        except TypeError:
            # Another library's, whose type NumPy does not know.
            array = _as_numpy(name, array, source)
            dtype = array.dtype
        kind = _KINDS.get(dtype)
        if kind is None:
            raise ModelError(f"{source}: tensor {name!r} has type {dtype}, which cannot be read as a weight")
        shape = tuple(int(size) for size in array.shape)
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return cls(name, kind, shape, 0, size, Path(source), HostValues(array))

    @property
    def is_in_order(self) -> bool:
        """See `Tensor`."""
        return True

    @contextmanager
    def _open(self, begin: int) -> Iterator[Any]:
        start = self.start + begin
        yield io.BytesIO(self.values.bytes()[start : self.end].data)


def _as_numpy(name: str, array: Any, source: str) -> np.ndarray:
    try:
        return np.asarray(array)
    except (TypeError, ValueError) as error:
        raise ModelError(f"{source}: tensor {name!r} cannot be read as an array ({error})") from error


def _on_host(array: Any) -> np.ndarray:
    """The values on the host. JAX keeps the host's copy of an array alongside it, so whole ones are never asked for."""
    if not isinstance(array, jax.Array):
        return np.asarray(array)
    if not array.is_fully_addressable:
        raise ModelError("the array is on devices of other hosts: gather it first")
    shards = array.addressable_shards
    if array.is_fully_replicated:
        return np.asarray(shards[0].data)
    whole = np.empty(array.shape, array.dtype)
    for shard in shards:
        if shard.replica_id == 0:
            whole[shard.index] = np.asarray(shard.data)
    return whole
