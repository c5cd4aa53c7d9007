"""Which files a saved state gets, and what is in each: decided before anything is written."""

import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxllm.errors import RequestError
from jaxllm.executor.weights.sharded.manifest import is_plain_name
from jaxllm.executor.weights.sharded.regions import Region, region_of
from jaxllm.models.checkpoint.safetensors_writer import Entry

TP_ONLY_PATTERN = "model-rank-{rank}-part-{part}.safetensors"
PP_AND_TP_PATTERN = "model-pp-{pp_rank}-tp-{tp_rank}-part-{part}.safetensors"
"""Names of files, as vLLM has them."""
_FIELDS = ("rank", "tp_rank", "pp_rank", "part")

_DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
"""What safetensors calls NumPy's types. Others have one byte each, such as numbers of 4 bits in memory."""


@dataclass(frozen=True)
class PlannedPart:
    """A part of a parameter, which one device has."""

    stage: int
    name: str
    region: Region
    data: jax.Array

    @property
    def entry(self) -> Entry:
        """In the header of a file."""
        dtype = np.dtype(self.data.dtype)
        assert dtype.name in _DTYPES or dtype.itemsize == 1, dtype
        return Entry(self.name, _DTYPES.get(dtype.name, "U8"), self.data.shape, self.num_bytes)

    @property
    def num_bytes(self) -> int:
        """In the file."""
        return self.data.size * np.dtype(self.data.dtype).itemsize


@dataclass(frozen=True)
class PlannedFile:
    """A file, and what is in it."""

    name: str
    parts: tuple[PlannedPart, ...]


def plan_files(
    stages: Sequence[tuple[Any, Sequence[tuple[str, jax.Array]]]], pattern: str | None, max_size: int | None
) -> list[PlannedFile]:
    """The files for the parameters of each stage: its mesh, and names and arrays.

    A file has what one device has, and at most `max_size` bytes unless a single tensor has more. What several devices
    have alike is in the first one's. Raises `RequestError` for a pattern that does not tell the files apart.
    """
    _check(pattern, max_size)
    default = TP_ONLY_PATTERN if len(stages) == 1 else PP_AND_TP_PATTERN
    files: list[PlannedFile] = []
    for number, (mesh, arrays) in enumerate(stages):
        for rank, parts in sorted(_parts_by_rank(number, mesh, arrays).items()):
            for part, own in enumerate(_cut(parts, max_size)):
                fields = {"rank": rank, "tp_rank": rank, "pp_rank": number, "part": part}
                files.append(PlannedFile(_rendered(pattern or default, fields), tuple(own)))
    names = [file.name for file in files]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise RequestError(
            f"pattern={pattern!r}: {names.count(twice)} files would have the name {twice!r}: use {{rank}}, {{part}} "
            f"and, with stages, {{pp_rank}} in the pattern",
            "pattern",
        )
    return files


def _check(pattern: str | None, max_size: int | None) -> None:
    if pattern is not None and not isinstance(pattern, str):
        raise RequestError(f"pattern={pattern!r}: must be a string", "pattern")
    if max_size is not None and (type(max_size) is not int or max_size < 1):
        raise RequestError(f"max_size={max_size!r}: must be a number of bytes of at least 1", "max_size")


def _rendered(pattern: str, fields: dict[str, int]) -> str:
    try:
        found = {field for _, field, _, _ in string.Formatter().parse(pattern) if field is not None}
        # Nothing else: attributes of a field would be looked up, too.
        unknown = sorted(found - set(_FIELDS))
        name = "" if unknown else pattern.format(**fields)
    except (ValueError, IndexError, KeyError) as error:
        raise RequestError(f"pattern={pattern!r}: {error}", "pattern") from error
    if unknown:
        known = ", ".join(_FIELDS)
        raise RequestError(f"pattern={pattern!r}: {{{unknown[0]}}} is unknown; known are {known}", "pattern")
    if not is_plain_name(name):
        raise RequestError(f"pattern={pattern!r}: {name[:200]!r} is not the name of a .safetensors file", "pattern")
    return name


def _parts_by_rank(number: int, mesh: Any, arrays: Sequence[tuple[str, jax.Array]]) -> dict[int, list[PlannedPart]]:
    """The parts that each device of a stage writes, by its place in the mesh."""
    ranks = {} if mesh is None else {device: rank for rank, device in enumerate(mesh.devices.flat)}
    found: dict[int, list[PlannedPart]] = {}
    for name, array in arrays:
        own: dict[Region, tuple[int, jax.Array]] = {}
        for shard in array.addressable_shards:
            region, rank = region_of(shard.index, array.shape), ranks.get(shard.device, 0)
            if region not in own or rank < own[region][0]:
                own[region] = rank, shard.data
        for region, (rank, data) in own.items():
            found.setdefault(rank, []).append(PlannedPart(number, name, region, data))
    return found


def _cut(parts: Sequence[PlannedPart], max_size: int | None) -> list[list[PlannedPart]]:
    """The parts of one device, file by file."""
    files: list[list[PlannedPart]] = [[]]
    size = 0
    for part in parts:
        if files[-1] and max_size is not None and size + part.num_bytes > max_size:
            files.append([])
            size = 0
        files[-1].append(part)
        size += part.num_bytes
    return files
