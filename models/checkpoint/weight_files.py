"""Which files of a folder hold the weights, and the tensors in them."""

from pathlib import Path

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.other_formats import advice_for_other_weights, is_file, is_gguf
from jaxllm.models.checkpoint.safetensors_file import Tensor, read_header
from jaxllm.models.errors import ModelError

SINGLE_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"
TORCH_FILE, TORCH_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"


def checkpoint_files(folder: Path, load_format: str = "auto") -> list[Path]:
    """The files of a checkpoint, from its index if it has one; GGUF only without safetensors, PyTorch's without either.

    `load_format` 'safetensors' and 'gguf' take no others. Raises `ModelError` when there are none.
    """
    found = gguf_files(folder) if load_format in ("auto", "gguf") else []
    has_others = any((folder / name).is_file() for name in (SINGLE_FILE, INDEX_FILE))
    if found and (load_format == "gguf" or not has_others):
        return found
    if load_format == "gguf":
        raise ModelError(f"{folder}: no .gguf file is there, which load format 'gguf' asks for")
    kinds = [(SINGLE_FILE, INDEX_FILE), (TORCH_FILE, TORCH_INDEX)][: 1 if load_format == "safetensors" else 2]
    for single, index in kinds:
        if (folder / index).is_file():
            return _indexed(folder, ConfigFile.read(folder / index))
        if (folder / single).is_file():
            return [folder / single]
    is_torch = load_format == "safetensors" and any((folder / name).is_file() for name in (TORCH_FILE, TORCH_INDEX))
    advice = f"; load format 'auto' reads {TORCH_FILE}" if is_torch else advice_for_other_weights(folder)
    raise ModelError(f"{folder}: neither {SINGLE_FILE} nor {INDEX_FILE} is there{advice}")


def gguf_files(folder: Path) -> list[Path]:
    """The one GGUF file of a folder, or its parts. Raises `ModelError` for several files."""
    found = sorted(path for path in folder.glob("*") if is_gguf(path))
    if not found:
        return []
    from jaxllm.models.quantization.gguf.folder import parts_of

    parts = parts_of(found[0])
    others = sorted(set(found) - set(parts))
    if others:
        raise ModelError(
            f"{folder}: there are several models in it ({found[0].name}, {others[0].name}, ...): give one file"
        )
    return parts


def _indexed(folder: Path, index: ConfigFile) -> list[Path]:
    where = index.section("weight_map")
    if where is None:
        raise ModelError(f"{index.source}: 'weight_map' is missing or empty")
    names = sorted({where.text(key) for key in where.values})
    for name in names:
        if Path(name).name != name or "\\" in name:
            raise ModelError(f"{index.source}: {name[:200]!r} is not the name of a file beside it")
    lost = [name[:200] for name in names if not is_file(folder / name)]
    if lost:
        some = ", ".join(lost[:3]) + (f" and {len(lost) - 3} more" if len(lost) > 3 else "")
        raise ModelError(f"{index.source}: {len(lost)} of {len(names)} files are missing: {some}")
    return [folder / name for name in names]


def read_tensors(path: Path) -> list[Tensor]:
    """The tensors of a file in the order of their bytes. Raises `ModelError`."""
    if path.suffix not in (".bin", ".pt"):
        return read_header(path)
    # Few checkpoints need it, and every start would pay for it.
    from jaxllm.models.checkpoint.torch_file import read_torch_file

    return read_torch_file(path)


def tensors_in(folder: Path, load_format: str = "auto") -> list[Tensor]:
    """All tensors of a checkpoint. Raises `ModelError`."""
    files = checkpoint_files(folder, load_format)
    if is_gguf(files[0]):
        # Parts of such a file mean something only together.
        from jaxllm.models.quantization.gguf.widened import widened_tensors

        return widened_tensors(files)
    return [tensor for file in files for tensor in read_tensors(file)]
