"""A GGUF file as a folder, as all other checkpoints are.

Configuration and tokenizer are written once for each file, to the user's cache; the weights are a link.
"""

import hashlib
import json
import os
import shutil
import tempfile
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from jaxllm.models.checkpoint.other_formats import TOKENIZER_PROBLEM
from jaxllm.models.checkpoint.weight_files import parts_of
from jaxllm.models.errors import ModelError
from jaxllm.models.quantization.gguf.config import read_model_config
from jaxllm.models.quantization.gguf.file import read_parts
from jaxllm.models.quantization.gguf.tensors import named_tensors
from jaxllm.models.quantization.gguf.tokenizer import save_tokenizer
from jaxllm.pallas_kernels.artifact_cache import ArtifactCache, hold

_FORMAT = "jaxllm gguf 1"
LARGEST_CACHE = 2**30
"""Bytes of all folders together, without the weights that they point to: those of about a hundred models."""


def gguf_folder(path: Path, cache: Path | None = None) -> Path:
    """The folder that stands for the file, made if it is not there. Raises `ModelError`.

    Any part of a split file may be given.
    """
    parts = [part.resolve() for part in parts_of(path)]
    home = cache or default_cache()
    folder = home / _digest(parts)
    if _take(folder):
        return folder
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = Path(tempfile.mkdtemp(dir=home, prefix=".new-"))
    except OSError:
        new = folder = Path(tempfile.mkdtemp(prefix="jaxllm-gguf-"))
    try:
        _fill(new, parts)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    if new != folder:
        try:
            new.rename(folder)
        except OSError:  # Another process was faster.
            shutil.rmtree(new, ignore_errors=True)
        hold(folder)
        ArtifactCache(home, LARGEST_CACHE).prune()
    return folder


def _take(folder: Path) -> bool:
    """Hold the folder, if it is there, as long as this process lives: weights may be read again after days."""
    hold(folder)
    if not folder.is_dir():
        return False
    with suppress(OSError):
        os.utime(folder)  # When it was used last.
    return True


def default_cache() -> Path:
    """The user's folder of such folders."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jaxllm" / "gguf"


def _digest(parts: list[Path]) -> str:
    digest = hashlib.sha256(f"{_FORMAT}\n{metadata.version('transformers')}\n".encode())
    for part in parts:
        status = part.stat()
        digest.update(f"{part}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:32]


def _fill(folder: Path, parts: list[Path]) -> None:
    """Write configuration and tokenizer, and link the weights."""
    whole = read_parts(parts)
    config = read_model_config(whole)
    types = {named.name: named.tensor.type for named in named_tensors(whole)}
    config["quantization_config"] = {"quant_method": "gguf", "types": _quantised(types)}
    _write(folder / "config.json", config)
    ends = {key: config[key] for key in ("bos_token_id", "eos_token_id") if config[key] is not None}
    _write(folder / "generation_config.json", ends)
    try:
        save_tokenizer(whole, folder)
    except ModelError as error:
        # Another one may be given: this matters only where it is used.
        (folder / TOKENIZER_PROBLEM).write_text(str(error), encoding="utf-8")
    names = ["model.gguf"] if len(parts) == 1 else [part.name for part in parts]
    for name, part in zip(names, parts, strict=True):
        (folder / name).symlink_to(part)


def _quantised(types: dict[str, str]) -> dict[str, str]:
    """Types of matrices that are not numbers, by the names of their modules; of experts the first stands for all."""
    return {
        name.removesuffix(".weight"): kind
        for name, kind in types.items()
        if kind not in ("F32", "F16", "BF16") and (".experts." not in name or ".experts.0." in name)
    }


def _write(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=1), encoding="utf-8")
