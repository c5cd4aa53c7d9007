"""Reading of one safetensors file, tensor by tensor, with nothing mapped into memory.

The library's reader maps the file, and every page it touches counts as resident memory of the process, so that a
checkpoint would occupy its size twice while it loads. Plain reads leave the pages to the kernel's cache.
Format: https://github.com/huggingface/safetensors (8 bytes little-endian length, JSON header, data).
"""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from jaxllm.models.errors import ModelError

DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
"""Types of weights that can be read."""

INTEGERS: dict[str, np.dtype[Any]] = {"I64": np.dtype(np.int64), "I32": np.dtype(np.int32)}
"""Types of tables of numbers that can be."""

CHUNK_BYTES = 8 * 2**20
MAX_HEADER_BYTES = 100 * 2**20
MAX_NAME, MAX_DIMENSIONS = 1024, 32
ALIGNMENT = 64


@dataclass(frozen=True)
class Tensor:
    """Where one tensor lies: `start` and `end` are bytes from the beginning of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int
    path: Path

    @property
    def is_in_order(self) -> bool:
        """Whether its values lie as they are: then a range of its bytes is a part of it."""
        return type(self) is Tensor

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """In the file."""
        return self.end - self.start

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape of what `read_into` fills."""
        return self.shape

    def present(self, values: np.ndarray) -> np.ndarray:
        """The tensor from values of `stored_shape`."""
        return values

    def row(self, index: int) -> np.ndarray:
        """Row `index` of a matrix, in its own type. Raises `ModelError` when there is none."""
        rows, *rest = self.shape
        if index >= rows:
            raise ModelError(f"{self.path}: {self.name} has {rows} rows, but row {index} is needed")
        dtype = DTYPES[self.dtype]
        size = math.prod(rest) * dtype.itemsize
        start = self.start + index * size
        return replace(self, shape=tuple(rest), start=start, end=start + size).read(dtype)

    def read(self, dtype: np.dtype[Any]) -> np.ndarray:
        """The values in `dtype`, in a new array which devices that share the host's memory can take as it is.

        Raises `ModelError` when the file ends early, or when a value overflows float16.
        """
        out = aligned_empty(self.stored_shape, dtype)
        self.read_into(out.reshape(-1), 0)
        return self.present(out)

    def read_into(self, flat: np.ndarray, begin: int) -> None:
        """Fill `flat` with the values from number `begin` on, in its type.

        Raises `ModelError` like `read`.
        """
        source = DTYPES.get(self.dtype) or INTEGERS[self.dtype]
        if source == flat.dtype:
            self.read_bytes(flat.view(np.uint8), begin * source.itemsize)
            return
        with self._open(begin * source.itemsize) as file:
            self._convert(file, flat, source)

    def read_bytes(self, target: np.ndarray, begin: int) -> None:
        """Fill uint8 `target` with the bytes from number `begin` on, as the file has them. Raises like `read`."""
        with self._open(begin) as file:
            self.fill(file, target)

    @contextmanager
    def _open(self, begin: int) -> Iterator[Any]:
        """The file at byte `begin` of the tensor."""
        try:
            with self.path.open("rb", buffering=0) as file:
                file.seek(self.start + begin)
                yield file
        except OSError as error:
            raise ModelError(f"{self.path}: cannot read it ({error.strerror})") from None

    def _convert(self, file: Any, flat: np.ndarray, source: np.dtype[Any]) -> None:
        chunk = np.empty(max(1, min(CHUNK_BYTES // source.itemsize, flat.size)), source)
        for begin in range(0, flat.size, chunk.size):
            part = chunk[: flat.size - begin]
            self.fill(file, part.view(np.uint8))
            self.store(part, flat[begin : begin + part.size])

    def store(self, values: np.ndarray, target: np.ndarray) -> None:
        """Write values of this tensor to `target`, in its type. Raises `ModelError` when one overflows float16."""
        with np.errstate(over="ignore", invalid="ignore"):
            target[:] = values
        if target.dtype == np.float16 and not np.array_equal(np.isfinite(target), np.isfinite(values)):
            raise ModelError(
                f"{self.path}: tensor {self.name!r} has values too large for float16; choose bfloat16 or float32"
            )

    def fill(self, file: Any, target: np.ndarray) -> None:
        """Read the bytes of `target` from where `file` is. Raises `ModelError` when it ends early."""
        done = 0
        while done < target.size:
            count = file.readinto(target[done:])
            if not count:
                raise ModelError(f"{self.path}: the file ends within tensor {self.name!r}")
            done += count


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """An uninitialised array at an address that XLA's CPU client adopts without a copy."""
    size = math.prod(shape) * dtype.itemsize
    buffer = np.empty(size + ALIGNMENT, np.uint8)
    offset = -buffer.ctypes.data % ALIGNMENT
    return buffer[offset : offset + size].view(dtype).reshape(shape)


def read_header(path: Path) -> list[Tensor]:
    """The tensors of a file in the order of their bytes.

    Raises `ModelError` when the file is not safetensors, is truncated, or contradicts itself.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
                raise ModelError(f"{path}: not a safetensors file, or truncated ({size} bytes, header of {length})")
            header = json.loads(file.read(length).decode("utf-8"))
    except OSError as error:
        raise ModelError(f"{path}: cannot read it ({error.strerror})") from None
    except RecursionError:
        raise ModelError(f"{path}: corrupt safetensors header (nested too deeply)") from None
    except ValueError as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"{path}: corrupt safetensors header ({error})") from None
    if not isinstance(header, dict):
        raise ModelError(f"{path}: corrupt safetensors header (not an object)")
    tensors = sorted(_tensors(path, header, 8 + length), key=lambda tensor: (tensor.start, tensor.end))
    end = 0
    for tensor in tensors:
        if tensor.start < end:
            raise ModelError(f"{path}: corrupt safetensors header: tensor {tensor.name!r} overlaps another")
        end = tensor.end
    if end > size:
        raise ModelError(f"{path}: truncated: {size} bytes, but tensor {tensors[-1].name!r} ends at byte {end}")
    return tensors


def _tensors(path: Path, header: dict[str, Any], data_start: int) -> Iterator[Tensor]:
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if len(name) > MAX_NAME:
            raise ModelError(f"{path}: corrupt safetensors header: a tensor's name has {len(name)} characters")
        if not _is_entry(entry):
            raise ModelError(f"{path}: corrupt safetensors header: bad entry for tensor {name!r}")
        dtype, shape = entry["dtype"], tuple(entry["shape"])
        start, end = (data_start + offset for offset in entry["data_offsets"])
        known = DTYPES.get(dtype) or INTEGERS.get(dtype)
        if (known and end - start != math.prod(shape) * known.itemsize) or end < start:
            raise ModelError(
                f"{path}: corrupt safetensors header: tensor {name!r} of type {dtype} and shape {list(shape)} "
                f"cannot take {end - start} bytes"
            )
        yield Tensor(name, dtype, shape, start, end, path)


def _is_entry(entry: Any) -> bool:
    """Whether a header's value is that of a tensor: a type, sizes and two places, none of them negative or a text."""
    if not isinstance(entry, dict) or not isinstance(entry.get("dtype"), str) or len(entry["dtype"]) > MAX_NAME:
        return False
    shape, offsets = entry.get("shape"), entry.get("data_offsets")
    if not isinstance(shape, list) or not isinstance(offsets, list) or len(offsets) != 2 or len(shape) > MAX_DIMENSIONS:
        return False
    return all(type(number) is int and 0 <= number < 2**62 for number in (*shape, *offsets))
