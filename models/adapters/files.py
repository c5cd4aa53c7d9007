"""The files of an adapter, and the tensors in them."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from jaxllm.models.adapters.errors import AdapterError
from jaxllm.models.adapters.file_names import WEIGHT_FILES
from jaxllm.models.checkpoint.checkpoint import Checkpoint
from jaxllm.models.checkpoint.parameter_reloader import all_finite
from jaxllm.models.checkpoint.safetensors_file import DTYPES, Tensor
from jaxllm.models.errors import ModelError

ORBAX_FILES: Final = ("_CHECKPOINT_METADATA", "_METADATA", "items", "model_params", "0")
"""A folder that Orbax has written has one of these."""
MAXTEXT: Final = (
    "convert it with MaxText (python -m maxtext.checkpoint_conversion.to_huggingface, lora.lora_restore_path) or Tunix "
    "to PEFT's format or a merged model"
)
"""What to do with an adapter of JAX's trainers.

How its numbers lie depends on the trainer's own model: A [in, rank] and B [rank, out], or of einsums [heads, size,
rank] and [rank, heads, size], of all layers where these are scanned, on the first axis or the second. MaxText's script
writes PEFT's two files (`save_adapter_files` in src/maxtext/checkpoint_conversion/utils/utils.py of
AI-Hypercomputer/maxtext); Tunix writes merged models only (tunix/models/safetensors_saver.py of google/tunix). Both as
of August 2026.
"""
MAXTEXT_NAMES: Final = (".lora_a.kernel", ".lora_b.kernel", "_lora_a", "_lora_b")
"""Ends of the names that MaxText has had, and of Qwix's, which MaxText and Tunix have."""
MAX_BYTES: Final = 4 * 2**30
"""Of the weights. One of rank 64 for a dense model of 70 billion parameters has 1.7 GB in float16."""


def weights_file(folder: Path, max_bytes: int) -> Path:
    """The file with the weights. Raises `AdapterError` where there is none, or one that is too large."""
    for name in WEIGHT_FILES:
        path = folder / name
        if path.is_file():
            size = path.stat().st_size
            if size > max_bytes:
                raise AdapterError(f"{path}: {size} bytes; at most {max_bytes} are read")
            return path
    raise AdapterError(f"{folder}: none of {', '.join(WEIGHT_FILES)} is there")


def check_no_orbax(folder: Path) -> None:
    """Raise `AdapterError` for a folder of MaxText or Tunix, which may have a configuration, but no weights' file."""
    has_weights = any((folder / name).is_file() for name in WEIGHT_FILES)
    if not has_weights and any((folder / name).exists() for name in ORBAX_FILES):
        raise AdapterError(f"{folder}: a checkpoint of Orbax, as MaxText and Tunix write it; {MAXTEXT}")


def unknown_name(name: str) -> str:
    """What is wrong with a tensor's name that is of no form."""
    if name.endswith(MAXTEXT_NAMES):
        return f"has a name of MaxText's or Tunix's; {MAXTEXT}"
    return "has a name that is none of an adapter's tensors"


def headers(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name, unread. Raises `AdapterError`."""
    try:
        return {tensor.name: tensor for tensor in Checkpoint(path.parent).tensors_in(path)}
    except ModelError as error:
        raise AdapterError(str(error)) from None


class TensorReader:
    """Reads tensors, and makes a digest of what it has read."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = json.dumps(config, sort_keys=True)
        self._digests: dict[str, str] = {}

    def read(self, tensor: Tensor) -> np.ndarray:
        """The values, float32. Raises `AdapterError` for a type of no weights, and for what is not finite."""
        if tensor.dtype not in DTYPES:
            raise AdapterError(
                f"{tensor.path}: tensor {tensor.name!r} has type {tensor.dtype}, which is none of weights"
            )
        try:
            values = tensor.read(np.dtype(np.float32))
        except ModelError as error:
            raise AdapterError(str(error)) from None
        if not all_finite(values):
            raise AdapterError(f"{tensor.path}: tensor {tensor.name!r} has numbers that are not finite")
        digest = hashlib.sha256(str(tensor.shape).encode())
        digest.update(values.reshape(-1).view(np.uint8).data)
        self._digests[tensor.name] = digest.hexdigest()
        return values

    @property
    def digest(self) -> str:
        """Of everything so far, whatever its order, in hexadecimal digits."""
        contents = json.dumps([self._config, sorted(self._digests.items())])
        return hashlib.sha256(contents.encode()).hexdigest()
