"""Which files of a folder hold the weights."""

import re
from pathlib import Path

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.other_formats import advice_for_other_weights, is_file, is_gguf
from jaxllm.models.errors import ModelError

SINGLE_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"
TORCH_FILE, TORCH_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
MAX_PARTS = 1000
"""Of a GGUF file."""

_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.gguf)", re.IGNORECASE)


def weight_files(folder: Path, load_format: str = "auto") -> list[Path]:
    """The files of a checkpoint, from its index if it has one; GGUF only without safetensors, PyTorch's without either.

    `load_format` 'safetensors' and 'gguf' take no others. Raises `ModelError` when there are none.
    """
    found = gguf_files(folder) if load_format in ("auto", "gguf") else []
    has_others = any((folder / name).is_file() for name in (SINGLE_FILE, INDEX_FILE))
    if found and (load_format == "gguf" or not has_others):
        return found
    if load_format == "gguf":
        raise ModelError(f"{folder}: no .gguf file, which load format 'gguf' requires")
    kinds = [(SINGLE_FILE, INDEX_FILE), (TORCH_FILE, TORCH_INDEX)][: 1 if load_format == "safetensors" else 2]
    for single, index in kinds:
        if (folder / index).is_file():
            return _indexed(folder, ConfigFile.read(folder / index))
        if (folder / single).is_file():
            return [folder / single]
    is_torch = load_format == "safetensors" and any((folder / name).is_file() for name in (TORCH_FILE, TORCH_INDEX))
    advice = f"; load format 'auto' reads {TORCH_FILE}" if is_torch else advice_for_other_weights(folder)
    raise ModelError(f"{folder}: has neither {SINGLE_FILE} nor {INDEX_FILE}{advice}")


def gguf_files(folder: Path) -> list[Path]:
    """The one GGUF file of a folder, or its parts. Raises `ModelError` for several files."""
    found = sorted(path for path in folder.glob("*") if is_gguf(path))
    if not found:
        return []
    parts = parts_of(found[0])
    others = sorted(set(found) - set(parts))
    if others:
        raise ModelError(f"{folder}: contains several models ({found[0].name}, {others[0].name}, ...): give one file")
    return parts


def parts_of(path: Path) -> list[Path]:
    """The GGUF file, or all parts of it if its name says that it is one. Raises `ModelError` for missing parts."""
    found = _PART.fullmatch(path.name)
    if found is None:
        return [path]
    stem, _, count, suffix = found.groups()
    if not 1 <= int(count) <= MAX_PARTS:
        raise ModelError(f"{path}: one of {int(count)} parts; 1 to {MAX_PARTS} are read")
    parts = [path.with_name(f"{stem}-{number:05}-of-{count}{suffix}") for number in range(1, int(count) + 1)]
    lost = [part.name for part in parts if not part.is_file()]
    if lost:
        raise ModelError(f"{path}: {len(lost)} of its {len(parts)} parts are missing: {', '.join(lost[:3])}")
    return parts


def _indexed(folder: Path, index: ConfigFile) -> list[Path]:
    where = index.section("weight_map")
    if where is None:
        raise ModelError(f"{index.source}: 'weight_map' is missing or empty")
    names = sorted({where.text(key) for key in where.values})
    for name in names:
        if Path(name).name != name or "\\" in name:
            raise ModelError(f"{index.source}: {name[:200]!r} is not the name of a file in the same folder")
    lost = [name[:200] for name in names if not is_file(folder / name)]
    if lost:
        some = ", ".join(lost[:3]) + (f" and {len(lost) - 3} more" if len(lost) > 3 else "")
        raise ModelError(f"{index.source}: {len(lost)} of {len(names)} files are missing: {some}")
    return [folder / name for name in names]
