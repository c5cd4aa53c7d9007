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

ORBAX_FILES: Final = ("_CHECKPOINT_METADATA", "_METADATA", "items", "0")
"""One of which is in a folder that Orbax has written."""
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
    if any((folder / name).exists() for name in ORBAX_FILES):
        raise AdapterError(
            f"{folder}: a checkpoint of Orbax, as MaxText writes it; convert it with MaxText to PEFT's format"
        )
    raise AdapterError(f"{folder}: none of {', '.join(WEIGHT_FILES)} is there")


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
