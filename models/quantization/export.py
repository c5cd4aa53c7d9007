"""Writes a quantized copy of a checkpoint: whole or not at all, one tensor at a time."""

import json
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from jaxllm.models.checkpoint.safetensors_file import DTYPES, Tensor
from jaxllm.models.checkpoint.safetensors_writer import write_file
from jaxllm.models.checkpoint.weight_files import INDEX_FILE, SINGLE_FILE
from jaxllm.models.errors import ModelError
from jaxllm.models.quantization.export_plan import Copied, ExportPlan
from jaxllm.models.quantization.rounding import rounded

SHARD_BYTES = 5 * 10**9
"""Size of a weight file, unless a single tensor is larger."""

PIECE_BYTES = 16 * 2**20
"""Bytes of a copied tensor that are in memory at a time."""

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".ckpt", ".ot", ".index.json")


def check_target(target: Path) -> None:
    """Raise `ModelError` unless nothing is there, or an empty folder."""
    if target.is_dir():
        if any(target.iterdir()):
            raise ModelError(f"{target}: the folder is not empty; give a new one, since nothing is overwritten")
    elif target.exists() or target.is_symlink():
        raise ModelError(f"{target}: is a file; give a new folder")


def write_export(
    plan: ExportPlan,
    target: Path,
    progress: Callable[[int, int], None] | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write the copy to the folder `target`, which appears once all is on the disk.

    Besides the weights it gets the other files of the checkpoint's folder. `progress` is called with the bytes written
    and the bytes in total. Raises `ModelError` for tensors that cannot be read or rounded, for a target that is there
    already, and for a disk that is full or rejects.
    """
    check_target(target)
    target = target.resolve()
    temporary = target.parent / f".{target.name}.{secrets.token_hex(4)}"
    try:
        temporary.mkdir(parents=True)
        _check_space(temporary, plan.num_bytes)
        _write_weights(plan, temporary, progress, shard_bytes)
        for file in companion_files(plan.folder):
            shutil.copyfile(file, temporary / file.name)
        _write_json(temporary / "config.json", plan.config)
        temporary.rename(target)
    except OSError as error:
        raise ModelError(f"{target}: cannot write it ({error.strerror or error}); partial output was removed") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def companion_files(folder: Path) -> list[Path]:
    """Other files of a checkpoint's folder besides weights and config.json: tokenizer, chat template, licence."""
    return [
        file
        for file in sorted(folder.iterdir())
        if file.is_file() and not file.name.startswith(".") and file.name != "config.json"
        if not file.name.endswith(_WEIGHTS)
    ]


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ModelError(
            f"{folder.parent}: the quantized weights take {needed / 1e9:.1f} GB, but only {free / 1e9:.1f} GB are free"
        )


def _write_weights(
    plan: ExportPlan, folder: Path, progress: Callable[[int, int], None] | None, shard_bytes: int
) -> None:
    shards = _shards(plan.tensors, shard_bytes)
    done, places = 0, {}

    def arrays(shard: Sequence[Copied]) -> Iterator[tuple[str, np.ndarray]]:
        nonlocal done
        for each in shard:
            yield from _arrays(each)
            done += each.num_bytes
            if progress:
                progress(done, plan.num_bytes)

    for number, shard in enumerate(shards, 1):
        name = SINGLE_FILE if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        entries = [entry for each in shard for entry in each.entries]
        write_file(folder / name, entries, arrays(shard))
        places.update({entry.name: name for entry in entries})
    if len(shards) > 1:
        _write_json(folder / INDEX_FILE, {"metadata": {"total_size": plan.num_bytes}, "weight_map": places})


def _shards(tensors: Sequence[Copied], shard_bytes: int) -> list[list[Copied]]:
    """Tensors in their order, cut before a file would get too large."""
    shards: list[list[Copied]] = [[]]
    size = 0
    for each in tensors:
        if shards[-1] and size + each.num_bytes > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(each)
        size += each.num_bytes
    return shards


def _arrays(copied: Copied) -> Iterator[tuple[str, np.ndarray]]:
    """The tensors that a tensor becomes."""
    tensor, scheme = copied.tensor, copied.scheme
    if scheme is not None:
        matrix = rounded(tensor.read(np.dtype(np.float32)), scheme.kind)
        if not np.isfinite(matrix.scales.astype(np.float32)).all():
            raise ModelError(f"{tensor.path}: tensor {tensor.name!r} has values that are not finite")
        yield from scheme.arrays(copied.module, matrix)
    elif type(tensor) is not Tensor:
        # One whose values do not lie one after another in its file.
        yield tensor.name, tensor.read(DTYPES[tensor.dtype])
    else:
        # In pieces: an embedding may be several times the largest matrix of a layer.
        raw = np.empty(min(tensor.num_bytes, PIECE_BYTES), np.uint8)
        for start in range(0, tensor.num_bytes, PIECE_BYTES):
            piece = raw[: tensor.num_bytes - start]
            tensor.read_bytes(piece, start)
            yield tensor.name, piece


def _write_json(path: Path, values: object) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
