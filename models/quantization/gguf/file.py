"""The header of a GGUF file: its metadata, and where its tensors lie.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3. The `gguf` package's reader makes
an array of every token and believes every count; this one checks each length against what the file has left before it
takes memory, and reads the vocabulary of a large model in a fraction of a second.
"""

import math
import mmap
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from jaxllm.models.errors import ModelError
from jaxllm.models.quantization.gguf.types import TENSOR_TYPES, TYPE_NAMES

MAGIC = b"GGUF"
ALIGNMENT = 32
MAX_HEADER_BYTES = 512 * 2**20
MAX_STRING_BYTES = 16 * 2**20
MAX_TENSORS, MAX_KEYS = 1_000_000, 65_536
MAX_STRINGS = 4_000_000
"""Maximum strings in an array: vocabularies have up to 300,000, and as many merges."""
MAX_NAME = 1024
MAX_DIMENSIONS = 4

_NUMBERS = {0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8"}
"""NumPy's names of the types of metadata that have one size."""
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True)
class GgufTensor:
    """Where a tensor lies, whose `shape` has rows first, as everywhere but in GGUF."""

    name: str
    type: str
    shape: tuple[int, ...]
    start: int
    end: int
    path: Path


@dataclass(frozen=True)
class GgufFile:
    """A header. Arrays in the metadata are NumPy's, or lists of strings."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: tuple[GgufTensor, ...]

    @property
    def architecture(self) -> str:
        """Its name in llama.cpp: llama, qwen2, ... Raises `ModelError`."""
        return self.text("general.architecture")

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of all tensors."""
        return frozenset(tensor.name for tensor in self.tensors)

    def text(self, key: str, default: str | None = None) -> str:
        """A string of the metadata. Raises `ModelError`."""
        value = self.metadata.get(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, "a string")
        return value

    def wrong(self, key: str, expected: str) -> ModelError:
        """The error for metadata that cannot be used."""
        value = self.metadata.get(key)
        found = "is missing" if value is None else f"must be {expected}, found {str(value)[:80]!r}"
        return ModelError(f"{self.path}: {key!r} {found}")


def read_gguf(path: Path) -> GgufFile:
    """The header of the file. Raises `ModelError` naming the key or tensor of a file that contradicts itself."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            if size < 24 or file.read(4) != MAGIC:
                raise ModelError(f"{path}: not a GGUF file ({size} bytes)")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return _Reader(path, content).read()
    except OSError as error:
        raise ModelError(f"{path}: cannot read it ({error.strerror})") from None


def read_parts(paths: Sequence[Path]) -> GgufFile:
    """The header of a file in several parts; the first part has the metadata. Raises `ModelError`."""
    files = [read_gguf(path) for path in paths]
    first = files[0]
    whole = GgufFile(first.path, first.metadata, tuple(tensor for file in files for tensor in file.tensors))
    count = len(whole.tensors)
    if whole.metadata.get("split.tensors.count", count) != count or len(whole.names) != count:
        raise ModelError(
            f"{first.path}: its {len(files)} parts have {count} tensors, {len(whole.names)} by name; "
            f"'split.tensors.count' is {whole.metadata.get('split.tensors.count')}"
        )
    return whole


class _Reader:
    """Reads from the front; `_where` says in errors what is being read."""

    def __init__(self, path: Path, content: mmap.mmap) -> None:
        self._path, self._content, self._at = path, content, len(MAGIC)
        self._end = min(len(content), MAX_HEADER_BYTES)
        self._where = "header"

    def read(self) -> GgufFile:
        version = self._number("<I")
        if version not in (2, 3):
            kind = "big-endian" if version and version & 0xFFFF == 0 else f"version {version}"
            raise self._error(f"is {kind}; supported are versions 2 and 3 in little-endian order")
        tensors, keys = self._number("<Q"), self._number("<Q")
        self._check_count(tensors, 24, "tensors")
        self._check_count(keys, 13, "keys")
        for count, most, what in ((tensors, MAX_TENSORS, "tensors"), (keys, MAX_KEYS, "keys")):
            if count > most:
                raise self._error(f"has {count} {what}; at most {most} are supported")
        metadata: dict[str, Any] = {}
        for number in range(keys):
            self._where = f"key number {number}"
            key = self._string()
            self._where = f"key {key[:80]!r}"
            if key in metadata:
                raise self._error("occurs twice")
            metadata[key] = self._value(self._number("<I"))
        entries = [self._entry(number) for number in range(tensors)]
        self._where = "key 'general.alignment'"
        alignment = metadata.get("general.alignment", ALIGNMENT)
        if not isinstance(alignment, int) or not 0 < alignment <= 2**20 or alignment & alignment - 1:
            raise self._error(f"must be a power of two up to {2**20}, found {str(alignment)[:80]}")
        start = -(-self._at // alignment) * alignment
        found = sorted((self._placed(start, alignment, *entry) for entry in entries), key=lambda tensor: tensor.start)
        self._check_apart(found)
        return GgufFile(self._path, metadata, tuple(found))

    def _entry(self, number: int) -> tuple[str, tuple[int, ...], int, int]:
        self._where = f"tensor number {number}"
        name = self._string()
        self._where = f"tensor {name[:80]!r}"
        if len(name) > MAX_NAME:
            raise self._error(f"has a name of {len(name)} characters")
        dimensions = self._number("<I")
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise self._error(f"has {dimensions} dimensions; 1 to {MAX_DIMENSIONS} are supported")
        sizes = tuple(self._number("<Q") for _ in range(dimensions))
        return name, sizes[::-1], self._number("<I"), self._number("<Q")

    def _placed(
        self, data: int, alignment: int, name: str, shape: tuple[int, ...], code: int, offset: int
    ) -> GgufTensor:
        """A tensor, after its type and place are checked."""
        self._where = f"tensor {name[:80]!r}"
        if code not in TENSOR_TYPES:
            known = ", ".join(kind.name for kind in TENSOR_TYPES.values())
            raise self._error(f"has type {TYPE_NAMES.get(code, code)}, which is not supported (known: {known})")
        kind = TENSOR_TYPES[code]
        if 0 in shape or shape[-1] % kind.block:
            raise self._error(
                f"has shape {list(shape)}; rows of {kind.name} must be multiples of the block size {kind.block}"
            )
        size, start = math.prod(shape) // kind.block * kind.bytes, data + offset
        if offset % alignment:
            raise self._error(
                f"begins at byte {offset} of the data, which is not a multiple of the alignment {alignment}"
            )
        if start + size > len(self._content):
            raise self._error(f"ends at byte {start + size}, but the file has {len(self._content)}: it is truncated")
        return GgufTensor(name, kind.name, shape, start, start + size, self._path)

    def _check_apart(self, tensors: list[GgufTensor]) -> None:
        seen: set[str] = set()
        end = 0
        for tensor in tensors:
            self._where = f"tensor {tensor.name[:80]!r}"
            if tensor.name in seen:
                raise self._error("occurs twice")
            if tensor.start < end:
                raise self._error("overlaps another")
            seen.add(tensor.name)
            end = tensor.end

    def _value(self, code: int) -> Any:
        if code in _NUMBERS:
            return self._numbers(code, 1)[0].item()
        if code == _STRING:
            return self._string()
        if code != _ARRAY:
            raise self._error(f"has a value of type {code}, which GGUF does not define")
        element, count = self._number("<I"), self._number("<Q")
        if element in _NUMBERS:
            return self._numbers(element, count)
        if element != _STRING:
            raise self._error(f"is an array of type {element}; only arrays of numbers and strings are supported")
        self._check_count(count, 8, "strings")
        if count > MAX_STRINGS:
            raise self._error(f"has {count} strings; at most {MAX_STRINGS} are supported")
        return list(self._strings(count))

    def _numbers(self, code: int, count: int) -> np.ndarray:
        dtype = np.dtype(_NUMBERS[code])
        self._check_count(count, dtype.itemsize, "numbers")
        return np.frombuffer(self._take(count * dtype.itemsize), dtype)

    def _strings(self, count: int) -> Iterator[str]:
        for _ in range(count):
            yield self._string()

    def _string(self) -> str:
        length = self._number("<Q")
        if length > MAX_STRING_BYTES:
            raise self._error(f"has a string of {length} bytes; at most {MAX_STRING_BYTES} are supported")
        try:
            return self._take(length).decode("utf-8")
        except UnicodeDecodeError:
            raise self._error("has a string that is not UTF-8") from None

    def _number(self, form: str) -> int:
        number: int = struct.unpack(form, self._take(struct.calcsize(form)))[0]
        return number

    def _take(self, size: int) -> bytes:
        if size > self._end - self._at:
            raise self._error(f"extends past the end of the {'file' if self._end == len(self._content) else 'header'}")
        self._at += size
        return self._content[self._at - size : self._at]

    def _check_count(self, count: int, size: int, what: str) -> None:
        """Raise `ModelError` for more things, of at least `size` bytes each, than there can be."""
        if count > (self._end - self._at) // size:
            raise self._error(f"claims {count} {what}, which do not fit into the file")

    def _error(self, problem: str) -> ModelError:
        return ModelError(f"{self._path}: corrupt or unsupported GGUF: {self._where} {problem}")
