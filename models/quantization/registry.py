"""Formats of quantized checkpoints by their name in `quantization_config`."""

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import Source
from jaxllm.models.config import ModelConfig
from jaxllm.models.errors import ModelError
from jaxllm.models.quantization.format import Format
from jaxllm.models.quantization.types import with_format

FORMATS: Mapping[str, str] = {
    "awq": "awq",
    "bitnet": "bitnet",
    "bitsandbytes": "bitsandbytes",
    "compressed-tensors": "compressed_tensors",
    "fbgemm_fp8": "fbgemm_fp8",
    "fp8": "fp8",
    "gguf": "gguf.format",
    "gptq": "gptq",
    "modelopt": "modelopt",
    "mxfp4": "mxfp4",
}
"""Modules of this folder by `quant_method`, each with `read_format(section: ConfigFile) -> Format`.

A format uses every field of its section, ignores it as irrelevant (`ConfigFile.ignore`), or rejects it by name
(`section.wrong`, or `section.check_all_used(())`, which raises for what nobody looked at).
"""


_REASONS = {
    "torchao": " (their tensors are classes of that library, in layouts that depend on the device they were made on)"
}
"""Why a method is none of `FORMATS`, where people may expect it."""


def method_of(section: ConfigFile) -> str:
    """By what a `quantization_config` says that matrices were quantized, one of `FORMATS`. Raises `ModelError`."""
    # Sections that compressed-tensors wrote before it had a method are told by their groups.
    method = section.text("quant_method", "compressed-tensors" if section.has("config_groups") else "none")
    if method not in FORMATS:
        why = _REASONS.get(method, "")
        raise ModelError(
            f"{section.source}: checkpoints quantized with {method[:80]!r} cannot be read{why}; supported methods are "
            f"{', '.join(sorted(FORMATS))}. Use an unquantized checkpoint of the model, and quantize it while loading "
            "or with `jaxllm quantize`"
        )
    return method


def read_format(section: ConfigFile) -> Format:
    """The format of a `quantization_config`.

    Raises `ModelError`, which names the field, or says which methods there are.
    """
    module = import_module(f"jaxllm.models.quantization.{FORMATS[method_of(section)]}")
    found: Format = module.read_format(section)
    section.check_all_used(("quant_method",))
    return found


def as_quantized(config: ModelConfig, names: Mapping[str, str | Source], section: ConfigFile) -> ModelConfig:
    """The model as a checkpoint with this `quantization_config` has it; `names` are those of its modules' tensors.

    Raises like `read_format`.
    """
    return replace(with_format(config, names, read_format(section)), weight_method=method_of(section))
