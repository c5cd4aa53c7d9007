"""Tensors of a file that `torch.save` wrote, without PyTorch and without running anything.

Such a file is a zip archive of uncompressed entries: a pickle that says which tensors there are (see `torch_pickle`),
and one entry per storage, which is read where it lies.
"""

import io
import math
import struct
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from jaxllm.models.checkpoint.safetensors_file import DTYPES, INTEGERS, Tensor
from jaxllm.models.checkpoint.torch_pickle import PickleError, View, read_state_dict, read_tensor
from jaxllm.models.errors import ModelError

MAX_DIRECTORY_BYTES = 16 * 2**20
MAX_PICKLE_BYTES = 8 * 2**20
"""Maximum bytes of a pickle: a hostile one can make us hold some 100 times that; 30,000 tensors take 8 MiB."""

_ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
_LOCAL_HEADER = struct.Struct("<4s22xHH")
_LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""The first bytes of files that PyTorch wrote before version 1.6."""


@dataclass(frozen=True)
class StridedTensor(Tensor):
    """A tensor whose values do not lie one after the other: `strides` say how many values apart they are."""

    strides: tuple[int, ...]

    def row(self, index: int) -> np.ndarray:
        """See `Tensor`."""
        rows, *rest = self.shape
        if index >= rows:
            raise ModelError(f"{self.path}: {self.name} has {rows} rows, but row {index} is needed")
        dtype = DTYPES.get(self.dtype) or INTEGERS[self.dtype]
        start = self.start + index * self.strides[0] * dtype.itemsize
        return replace(self, shape=tuple(rest), strides=self.strides[1:], start=start).read(dtype)

    def read_into(self, flat: np.ndarray, begin: int) -> None:
        """See `Tensor`."""
        source = DTYPES.get(self.dtype) or INTEGERS[self.dtype]
        try:
            mapped = np.memmap(self.path, np.uint8, "r", self.start, (self.end - self.start,))
        except (OSError, ValueError) as error:
            raise ModelError(f"{self.path}: tensor {self.name!r} cannot be read ({error})") from None
        strides = [stride * source.itemsize for stride in self.strides]
        view = np.lib.stride_tricks.as_strided(mapped.view(source), self.shape, strides)
        self.store(view.flat[begin : begin + flat.size], flat)


def read_torch_file(path: Path) -> list[Tensor]:
    """The tensors of a file in the order of their bytes.

    Raises `ModelError` for another format, a file that is truncated or contradicts itself, and for one that holds
    anything else than tensors.
    """
    try:
        with path.open("rb") as file:
            views, starts = _read(file, path.stat().st_size, read_state_dict)
    except OSError as error:
        raise ModelError(f"{path}: cannot read it ({error.strerror})") from None
    except PickleError as error:
        raise ModelError(f"{path}: {error}") from None
    tensors = [_tensor(path, name, view, starts[view.storage.key]) for name, view in views.items()]
    return sorted(tensors, key=lambda tensor: tensor.start)


def read_torch_tensor(data: bytes) -> np.ndarray:
    """The one tensor in a file's bytes, as a view of them: nothing is copied.

    Raises `ModelError` for another format, for one that holds anything else, and for a tensor that repeats values: it
    would be larger than its file.
    """
    try:
        views, starts = _read(io.BytesIO(data), len(data), lambda pickle: {"": read_tensor(pickle)})
    except PickleError as error:
        raise ModelError(str(error)) from None
    view = views[""]
    dtype = DTYPES.get(view.storage.dtype)
    if dtype is None:
        raise ModelError(f"a tensor of type {view.storage.dtype}, which is not supported for weights")
    if math.prod(view.shape) > view.storage.size:
        raise ModelError(f"a tensor of shape {list(view.shape)[:8]} repeats its {view.storage.size} values")
    values = np.frombuffer(data, dtype, view.storage.size, starts[view.storage.key])[view.offset :]
    strides = [stride * dtype.itemsize for stride in view.strides]
    return np.lib.stride_tricks.as_strided(values, view.shape, strides, writeable=False)


def _read(
    file: BinaryIO, size: int, read: Callable[[bytes], dict[str, View]]
) -> tuple[dict[str, View], dict[str, int]]:
    """The tensors that `read` finds in the pickle, and where each storage begins."""
    entries = _entries(file)
    prefix = _prefix(entries)
    views = read(_pickle(file, entries[f"{prefix}/data.pkl"], size))
    if _text(file, entries.get(f"{prefix}/byteorder"), size) not in ("", "little"):
        raise PickleError("big-endian byte order is not supported")
    return views, _storages(file, entries, prefix, views.values(), size)


def _entries(file: BinaryIO) -> Mapping[str, zipfile.ZipInfo]:
    """Entries of the archive's directory, by name."""
    begin = file.read(len(_LEGACY))
    if begin == _LEGACY or not begin.startswith(b"PK"):
        old = "the format of PyTorch before 1.6" if begin == _LEGACY else "not a zip archive"
        raise PickleError(
            f"{old}, which is not supported; convert it with torch installed: torch.save(torch.load(FILE, "
            "weights_only=True), NEW_FILE)"
        )
    try:
        with zipfile.ZipFile(_Limited(file)) as archive:
            infos = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError, EOFError, struct.error) as error:
        raise PickleError(f"not a zip archive, or truncated ({error})") from None
    entries = {info.filename: info for info in infos}
    if len(entries) != len(infos):
        raise PickleError("two entries of the archive have the same name")
    return entries


class _Limited:
    """A file with limited reads: the archive itself says how large its directory is."""

    def __init__(self, file: BinaryIO) -> None:
        self.seek, self.tell, self._file = file.seek, file.tell, file

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(min(size, MAX_DIRECTORY_BYTES + 1) if size >= 0 else MAX_DIRECTORY_BYTES + 1)
        if len(data) > MAX_DIRECTORY_BYTES:
            raise PickleError(f"the archive's directory has more than {MAX_DIRECTORY_BYTES} bytes")
        return data

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        """The file is the caller's."""


def _prefix(entries: Iterable[str]) -> str:
    """The folder inside the archive that all is in."""
    found = [name.removesuffix("/data.pkl") for name in entries if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(found) != 1:
        raise PickleError("the archive has no data.pkl, so it is not a PyTorch state dict")
    return found[0]


def _place(file: BinaryIO, info: zipfile.ZipInfo, size: int) -> int:
    """Where the bytes of an entry begin in a file of `size` bytes."""
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1 or info.compress_size != info.file_size:
        raise PickleError(f"entry {info.filename[:80]!r} is compressed or encrypted")
    if info.header_offset < 0:
        raise PickleError(f"entry {info.filename[:80]!r} begins before the start of the file")
    file.seek(info.header_offset)
    header = file.read(_LOCAL_HEADER.size)
    if len(header) != _LOCAL_HEADER.size or not header.startswith(b"PK\x03\x04"):
        raise PickleError(f"entry {info.filename[:80]!r} is not at the place given in the archive's directory")
    _, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(header)
    start = info.header_offset + _LOCAL_HEADER.size + int(name_bytes) + int(extra_bytes)
    if start + info.file_size > size:
        raise PickleError(f"truncated: entry {info.filename[:80]!r} ends after the end of the file")
    return start


def _pickle(file: BinaryIO, info: zipfile.ZipInfo, size: int) -> bytes:
    start = _place(file, info, size)
    if info.file_size > MAX_PICKLE_BYTES:
        raise PickleError(f"its pickle has {info.file_size} bytes, more than the {MAX_PICKLE_BYTES} allowed")
    file.seek(start)
    return file.read(info.file_size)


def _text(file: BinaryIO, info: zipfile.ZipInfo | None, size: int) -> str:
    if info is None:
        return ""
    file.seek(_place(file, info, size))
    return file.read(min(info.file_size, 16)).decode("ascii", "replace")


def _storages(
    file: BinaryIO, entries: Mapping[str, zipfile.ZipInfo], prefix: str, views: Iterable[View], size: int
) -> dict[str, int]:
    """Where each storage begins, by its key."""
    places: dict[str, tuple[int, int]] = {}
    for storage in {view.storage for view in views}:
        info = entries.get(f"{prefix}/data/{storage.key}")
        if info is None:
            raise PickleError(f"storage {storage.key[:80]!r} is missing from the archive")
        if info.file_size != storage.size * _ITEM_BYTES[storage.dtype]:
            raise PickleError(f"storage {storage.key[:80]!r} has {info.file_size} bytes for {storage.size} values")
        start = _place(file, info, size)
        places[storage.key] = (start, start + info.file_size)
    end = 0
    for start, stop in sorted(places.values()):
        if start < end:
            raise PickleError("two storages overlap")
        end = stop
    return {key: start for key, (start, _) in places.items()}


def _tensor(path: Path, name: str, view: View, start: int) -> Tensor:
    item = _ITEM_BYTES[view.storage.dtype]
    start += view.offset * item
    values = math.prod(view.shape)
    span = 1 + sum((size - 1) * stride for size, stride in zip(view.shape, view.strides, strict=True)) if values else 0
    place: dict[str, Any] = {"name": name, "dtype": view.storage.dtype, "shape": view.shape, "start": start}
    if _is_contiguous(view):
        return Tensor(**place, end=start + values * item, path=path)
    return StridedTensor(**place, end=start + span * item, path=path, strides=view.strides)


def _is_contiguous(view: View) -> bool:
    step = 1
    for size, stride in zip(reversed(view.shape), reversed(view.strides), strict=True):
        if size > 1 and stride != step:
            return math.prod(view.shape) == 0
        step *= size
    return True
