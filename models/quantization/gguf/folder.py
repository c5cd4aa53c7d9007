"""A GGUF file as a folder, as all other checkpoints are.

Configuration and tokenizer are written once for each file, to the user's cache; the weights are a link.
"""

import json
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from jaxllm.models.checkpoint.made_folder import cache_home, digest_of, made_folder
from jaxllm.models.checkpoint.other_formats import TOKENIZER_PROBLEM
from jaxllm.models.checkpoint.weight_files import parts_of
from jaxllm.models.errors import ModelError
from jaxllm.models.quantization.gguf.config import read_model_config
from jaxllm.models.quantization.gguf.file import read_parts
from jaxllm.models.quantization.gguf.tensors import named_tensors
from jaxllm.models.quantization.gguf.tokenizer import save_tokenizer

_FORMAT = "jaxllm gguf 1"


def gguf_folder(path: Path, cache: Path | None = None) -> Path:
    """The folder that stands for the file, made if it is not there. Raises `ModelError`.

    Any part of a split file may be given.
    """
    parts = [part.resolve() for part in parts_of(path)]
    name = digest_of(f"{_FORMAT}\n{metadata.version('transformers')}", parts)
    return made_folder(cache or cache_home("gguf"), name, partial(_fill, parts=parts))


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
