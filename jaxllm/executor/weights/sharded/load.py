"""Reading a saved state: bytes go from the disk to the devices, and nothing is computed on the way but checksums."""

import math
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxllm.config.progress import Progress
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.executor.weights.sharded.identity import stage_for
from jaxllm.executor.weights.sharded.manifest import CHUNK_BYTES, Manifest, SavedArray, SavedPart, read_manifest
from jaxllm.executor.weights.sharded.regions import Placement
from jaxllm.models.causal_lm import abstract_model
from jaxllm.models.checkpoint.leaves import leaf_specs, shown
from jaxllm.models.checkpoint.mapped_file import MappedFile
from jaxllm.models.checkpoint.read_ahead import in_order
from jaxllm.models.checkpoint.safetensors_file import Tensor, aligned_empty, read_header
from jaxllm.models.checkpoint.weight_target import ParameterPath
from jaxllm.models.errors import ModelError


class SavedState:
    """A saved state in a folder. Its manifest and the headers of its files are read when first needed, and then never
    again. Each load has its own: files may change later.
    """

    def __init__(self, folder: Path, *, is_mapped: bool = False) -> None:
        """Nothing is read yet.

        Files that are mapped are not read: arrays lie in them, where devices share the memory of the host, and nobody
        may write to them. Checksums are not looked at, as every byte would have to be read.
        """
        self.folder = folder
        self._is_mapped = is_mapped
        self._mapped: dict[Path, MappedFile] = {}
        self._headers: dict[str, dict[str, Tensor]] = {}

    @cached_property
    def manifest(self) -> Manifest:
        """What it says of itself. Raises `ModelError`."""
        return read_manifest(self.folder)

    def load(self, resolved: ResolvedConfig, progress: Progress) -> tuple[jax.Array, ...]:
        """The parameters of an engine, or of a stage of it.

        Raises `ModelError` naming what differs, or the file or tensor that is missing or corrupt.
        """
        return tuple(make() for _, make in SavedWeights(self, resolved).read(progress))

    def tensor(self, name: str, part: SavedPart, dtype: np.dtype[Any]) -> Tensor:
        """The tensor with a part of the array `name`, which is as large as it must be. Raises `ModelError`."""
        path = self.folder / part.file
        if part.file not in self._headers:
            self._headers[part.file] = _header(path, name)
        tensor = _tensor(self._headers[part.file], name, part, dtype, path)
        if not self._is_mapped and len(part.checksums) != -(-tensor.num_bytes // CHUNK_BYTES):
            raise ModelError(f"{path}: tensor {name!r}: the saved state has {len(part.checksums)} checksums of it")
        return tensor

    def mapped(self, tensor: Tensor) -> MappedFile | None:
        """The mapped file of a tensor; None where files are read. Raises `ModelError`."""
        if not self._is_mapped:
            return None
        if tensor.path not in self._mapped:
            try:
                self._mapped[tensor.path] = MappedFile(tensor.path)
            except (OSError, ValueError) as error:
                raise ModelError(f"{tensor.path}: cannot be mapped into memory: {error}") from None
        return self._mapped[tensor.path]


class SavedWeights:
    """The parameters of an engine, or of a stage of it, in a saved state. Other meshes read the parts they need."""

    def __init__(self, state: SavedState, resolved: ResolvedConfig) -> None:
        """Checks everything but the values, and reads nothing else. Raises `ModelError`."""
        specs = leaf_specs(abstract_model(resolved.model, resolved.forward, jnp.dtype(resolved.dtype)))
        stage = stage_for(state.folder, state.manifest, resolved, specs)
        self._arrays: list[_Array] = []
        for path, spec in specs.items():
            name = shown(path)
            saved, placement = stage.arrays[name], Placement.of(spec.array)
            needed = placement.parts(saved)
            tensors = {number: state.tensor(name, saved.parts[number], placement.dtype) for number in needed}
            mapped = {number: state.mapped(tensor) for number, tensor in tensors.items()}
            self._arrays.append(_Array(path, saved, placement, tensors, mapped))

    def read(self, progress: Progress) -> Iterator[tuple[ParameterPath, Callable[[], jax.Array]]]:
        """Each parameter's path, and what puts it on the devices, in the order of the programs' arguments.

        While one is in use the next ones are read. Raises `ModelError` for a file that ends early or is corrupt.
        """
        total, done = sum(each.num_bytes for each in self._arrays), 0
        jobs = ((each.num_bytes, each.begin) for each in self._arrays)
        for array, make in zip(self._arrays, in_order(jobs), strict=True):
            yield array.path, make
            done += array.num_bytes
            progress("Loading weights", done, total)


class _Array:
    """One parameter, and the tensors that have its parts, by their numbers."""

    def __init__(
        self,
        path: ParameterPath,
        saved: SavedArray,
        placement: Placement,
        tensors: dict[int, Tensor],
        mapped: dict[int, MappedFile | None],
    ) -> None:
        self.path = path
        self._saved, self._placement, self._tensors, self._mapped = saved, placement, tensors, mapped
        self.num_bytes = sum(tensor.num_bytes for tensor in tensors.values())

    def begin(self, pool: ThreadPoolExecutor) -> Callable[[], Callable[[], jax.Array]]:
        """Have the parts read; returns what waits for that."""
        values, pieces = {}, []
        for number, tensor in self._tensors.items():
            part, file = self._saved.parts[number], self._mapped[number]
            if file is not None:
                values[number] = file.array(tensor.start, tuple(part.shape), self._placement.dtype)
                pieces.append(pool.submit(file.populate, tensor.start, tensor.end))
                continue
            values[number] = aligned_empty(tuple(part.shape), self._placement.dtype)
            data = values[number].reshape(-1).view(np.uint8)
            for place, checksum in enumerate(part.checksums):
                begin = place * CHUNK_BYTES
                pieces.append(pool.submit(_read, tensor, data[begin : begin + CHUNK_BYTES], begin, checksum))

        def finish() -> Callable[[], jax.Array]:
            for piece in pieces:
                piece.result()
            return partial(self._put, values)

        return finish

    def _put(self, values: dict[int, np.ndarray]) -> jax.Array:
        # Without waiting, copies of all arrays would be on their way at once.
        return jax.block_until_ready(self._placement.array(self._saved, values))


def _read(tensor: Tensor, target: np.ndarray, begin: int, checksum: int) -> None:
    tensor.read_bytes(target, begin)
    if zlib.crc32(target.data) != checksum:
        raise ModelError(f"{tensor.path}: corrupt: tensor {tensor.name!r} has a wrong checksum")


def _header(path: Path, name: str) -> dict[str, Tensor]:
    if not path.is_file():
        raise ModelError(f"{path}: missing or not a file, but the saved state has a part of {name!r} in it")
    return {tensor.name: tensor for tensor in read_header(path)}


def _tensor(header: dict[str, Tensor], name: str, part: SavedPart, dtype: np.dtype[Any], path: Path) -> Tensor:
    if name not in header:
        raise ModelError(f"{path}: tensor {name!r} is missing, but the saved state has a part of it here")
    tensor = header[name]
    size = math.prod(part.shape) * dtype.itemsize
    if tensor.num_bytes != size or tensor.shape != tuple(part.shape):
        raise ModelError(
            f"{path}: tensor {name!r} is {list(tensor.shape)} in {tensor.num_bytes} bytes, but the "
            f"saved state expects {part.shape} in {size}"
        )
    return tensor
