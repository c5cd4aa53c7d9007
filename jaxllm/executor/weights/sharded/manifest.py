"""What a saved state says of itself: data of fixed types, and whatever can be checked is checked."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from jaxllm.manifest_file import ManifestFormat
from jaxllm.models.checkpoint.other_formats import STATE_FILE
from jaxllm.models.errors import ModelError

FORMAT = "jaxllm sharded state"
VERSION = 1
CHUNK_BYTES = 16 * 2**20
"""Bytes that have a checksum, and that a thread reads at a time."""
LARGEST_MANIFEST = 256 * 2**20
"""Bytes. An array of a thousand devices has about 100 kB."""
MOST_PARTS = 4096
"""Maximum number of parts of an array."""

Size = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]


class SavedPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of an array: the tensor of the array's name in `file`, which begins at `start` along each axis.

    `checksums` are the CRC-32 of every `CHUNK_BYTES`.
    """

    file: str
    start: list[Size]
    shape: list[Size]
    checksums: list[Annotated[int, msgspec.Meta(ge=0, lt=2**32)]]

    @property
    def region(self) -> tuple[tuple[int, int], ...]:
        """Where it begins and ends along each axis."""
        return tuple((start, start + size) for start, size in zip(self.start, self.shape, strict=True))


class SavedArray(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A parameter: NumPy's name of its type, its shape, how it is made of the checkpoint's tensors, and its parts."""

    dtype: str
    shape: list[Size]
    arrangement: str
    parts: list[SavedPart]


class SavedStage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The parameters of the layers from `start` to `stop`, by name."""

    start: Size
    stop: Size
    arrays: dict[str, SavedArray]


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A saved state.

    `jaxllm` is the version that made it. `model` has digests of the model's configuration, and `engine` the options
    that decide how parameters lie on devices; both are there to say why a state does not fit.
    """

    format: str
    version: int
    jaxllm: str
    model: dict[str, str]
    engine: dict[str, Any]
    dtype: str
    """Data type in the checkpoint."""
    stages: list[SavedStage]

    @property
    def files(self) -> list[str]:
        """The names of the files, each once."""
        arrays = [array for stage in self.stages for array in stage.arrays.values()]
        return list(dict.fromkeys(part.file for array in arrays for part in array.parts))


_FORMAT = ManifestFormat(
    name=FORMAT,
    version=VERSION,
    content=Manifest,
    max_bytes=LARGEST_MANIFEST,
    describes="a saved state",
    remedy="save it again from the checkpoint",
    error=ModelError,
)


def is_saved_state(folder: Path) -> bool:
    """Whether there is a saved state in a folder."""
    return (folder / STATE_FILE).is_file()


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a saved state, checked. Raises `ModelError` that names the file, and what is wrong in it."""
    path = folder / STATE_FILE
    if not path.is_file():
        raise ModelError(
            f"{folder}: not a saved state: {STATE_FILE} is missing; create one with LLM.save_sharded_state, or use "
            "another load_format for ordinary checkpoints"
        )
    manifest = _FORMAT.read(path)
    for problem in _problems(manifest):
        raise ModelError(f"{path}: invalid: {problem}")
    return manifest


def has_kv_scales(folder: Path) -> bool:
    """Whether a saved state has scales of keys and values. Raises `ModelError`."""
    return any(name.split(".")[-1] == "kv_scales" for stage in read_manifest(folder).stages for name in stage.arrays)


def is_plain_name(name: str) -> bool:
    """Whether a file of this name lies in the folder itself, and can be told from others of ours."""
    is_plain = bool(name) and name == Path(name).name and not name.startswith(".")
    return is_plain and name.isprintable() and "\\" not in name and len(name) <= 200 and name.endswith(".safetensors")


def _problems(manifest: Manifest) -> Iterator[str]:
    for name in manifest.files:
        # Whatever the manifest says, nothing outside the folder is read.
        if not is_plain_name(name):
            yield f"{name[:200]!r} is not the name of a .safetensors file in the same folder"
    for stage in manifest.stages:
        for name, array in stage.arrays.items():
            problem = _problem(array)
            if problem is not None:
                yield f"array {name[:200]!r}: {problem}"


def _problem(array: SavedArray) -> str | None:
    axes = len(array.shape)
    if axes > 32 or len(array.parts) > MOST_PARTS:
        return f"{axes} axes but {len(array.parts)} parts"
    if any(len(part.start) != axes or len(part.shape) != axes for part in array.parts):
        return "a part has a different number of axes"
    if any(stop > size for part in array.parts for (_, stop), size in zip(part.region, array.shape, strict=True)):
        return "a part ends outside the array"
    sizes = [math.prod(part.shape) for part in array.parts]
    if 0 in sizes and 0 not in array.shape:
        return "a part is empty"
    if _overlap(array.parts):
        return "two parts overlap"
    if sum(sizes) != math.prod(array.shape):
        return f"the parts have {sum(sizes)} of {math.prod(array.shape)} values"
    return None


def _overlap(parts: Sequence[SavedPart]) -> bool:
    """Whether two parts have a value in common."""
    if len(parts) < 2:
        return False
    begin = np.array([part.start for part in parts], np.int64)
    end = begin + np.array([part.shape for part in parts], np.int64)
    if begin.shape[1] == 0:
        return True
    for number in range(len(parts) - 1):
        others = slice(number + 1, None)
        common = (begin[number] < end[others]) & (begin[others] < end[number])
        if common.all(axis=1).any():
            return True
    return False
