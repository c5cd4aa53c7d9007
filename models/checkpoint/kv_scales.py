"""Scales of keys and values that a checkpoint brings for an 8-bit KV cache: one of each for a layer.

They have several names: `k_scale` and `v_scale` of the attention, or of its projections (compressed-tensors, AutoFP8),
`output_scale` of the projections of keys and values (older compressed-tensors), and `kv_scale`, which is both.
"""

import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from jaxllm.models.checkpoint.checkpoint import Checkpoint
from jaxllm.models.checkpoint.config_file import ConfigFile, quantization_of
from jaxllm.models.checkpoint.safetensors_file import DTYPES, Tensor
from jaxllm.models.errors import ModelError

ENDINGS = (
    ".k_scale",
    ".v_scale",
    ".kv_scale",
    ".q_scale",
    ".prob_scale",
    ".k_proj.output_scale",
    ".v_proj.output_scale",
)
"""Patterns of names of tensors that are not weights."""

_NAME = re.compile(r"\.(?P<layer>\d+)\.(?:.*\.)?(?P<what>k_scale|v_scale|kv_scale|[kv]_proj\.output_scale)$")
_PARTS = {
    "k_scale": (0,),
    "v_scale": (1,),
    "kv_scale": (0, 1),
    "k_proj.output_scale": (0,),
    "v_proj.output_scale": (1,),
}
"""Which of keys and values a tensor is for."""


def has_kv_scales(checkpoint: Checkpoint) -> bool:
    """Whether the checkpoint brings some. Raises `ModelError` for files that cannot be read."""
    return any(_NAME.search(tensor.name) for tensor in checkpoint.tensors)


def read_kv_scales(checkpoint: Checkpoint, layers: Iterable[int]) -> dict[int, np.ndarray]:
    """Scale of keys and scale of values, float32 [2], of each of these layers.

    Raises `ModelError`, which names the tensor, where one is missing, is not a single number, or is not finite and
    above 0.
    """
    found: dict[tuple[int, int], float] = {}
    for tensor in checkpoint.tensors:
        match = _NAME.search(tensor.name)
        if match is not None:
            value = _scale(tensor)
            found |= {(int(match["layer"]), part): value for part in _PARTS[match["what"]]}
    scales = {}
    for layer in layers:
        for part, name in enumerate("kv"):
            if (layer, part) not in found:
                raise ModelError(
                    f"{checkpoint.folder}: scale '{name}_scale' of layer {layer} is missing from the checkpoint, "
                    "which has scales of other layers"
                )
        scales[layer] = np.array([found[layer, 0], found[layer, 1]], np.float32)
    return scales


def _scale(tensor: Tensor) -> float:
    where = f"{tensor.path}: tensor {tensor.name!r}"
    if tensor.shape not in ((), (1,)) or tensor.dtype not in DTYPES:
        raise ModelError(
            f"{where} is {list(tensor.shape)} of {tensor.dtype}; a scale of the KV cache must be a single number"
        )
    value = float(tensor.read(np.dtype(np.float32)).reshape(()))
    # Written so that NaN fails.
    if not 0 < value < float("inf"):
        raise ModelError(f"{where} is {value}; a scale of the KV cache must be finite and greater than 0")
    return value


def kv_cache_scheme(folder: Path) -> str | None:
    """The type for which a checkpoint of compressed-tensors has such scales, 'fp8_e4m3' or 'int8'; None for any other.

    Raises `ModelError`, which names the field, for a scheme other than 8 bits with one scale for a layer.
    """
    path = folder / "config.json"
    section = quantization_of(ConfigFile.read(path)) if path.is_file() else None
    scheme = None if section is None else section.section("kv_cache_scheme")
    if scheme is None:
        return None
    if scheme.integer("num_bits") != 8:
        raise scheme.wrong("num_bits", "8")
    if scheme.text("strategy", "tensor") != "tensor":
        raise scheme.wrong("strategy", "'tensor'")
    if scheme.boolean("dynamic", False) or not scheme.boolean("symmetric", True):
        raise scheme.wrong("dynamic" if scheme.boolean("dynamic", False) else "symmetric", "the value of static scales")
    kind = scheme.text("type")
    if kind not in ("float", "int"):
        raise scheme.wrong("type", "'float' or 'int'")
    return "fp8_e4m3" if kind == "float" else "int8"
