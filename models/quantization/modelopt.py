"""Checkpoints of NVIDIA's Model Optimizer in NVFP4, and in float8 with a scale per tensor.

Format: https://github.com/NVIDIA/Model-Optimizer, modelopt/torch/export, as its config.json has it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.quantization.by_module import ByModule
from jaxllm.models.quantization.fp4_blocks import MODELOPT_NVFP4
from jaxllm.models.quantization.matrix_format import MatrixFormat
from jaxllm.models.quantization.module_names import is_in_block
from jaxllm.models.quantization.scaled_values import ScaledValues
from jaxllm.pallas_kernels.linear.weight_type import Activations, Values

ALGORITHMS: Mapping[str, MatrixFormat] = {
    "FP8": ScaledValues(Values.FLOAT8_E4M3, "tensor", activations=Activations.STATIC),
    "NVFP4": MODELOPT_NVFP4,
}


@dataclass(frozen=True)
class ModelOpt(ByModule):
    """Matrices of the layers but for those `ignored`, which may have `*` in their names."""

    format: MatrixFormat
    ignored: tuple[str, ...] = ()

    def format_of(self, module: str) -> MatrixFormat | None:
        """See `ByModule`."""
        parts = [module.rsplit(".", count)[0] for count in range(module.count(".") + 1)]
        if not is_in_block(module) or any(fnmatchcase(part, name) for part in parts for name in self.ignored):
            return None
        return self.format


def read_format(section: ConfigFile) -> ModelOpt:
    """From the section of config.json. Raises `ModelError`, which names the field."""
    # The cache has its own option; groups repeat what the algorithm says.
    section.ignore("producer", "kv_cache_scheme", "kv_cache_quant_algo", "config_groups")
    algorithm = section.text("quant_algo")
    if algorithm not in ALGORITHMS:
        raise section.wrong("quant_algo", "'NVFP4' or 'FP8'")
    if algorithm == "NVFP4" and section.integer("group_size", 16) != 16:
        raise section.wrong("group_size", "16 for NVFP4")
    lists = [section.texts(key) for key in ("ignore", "exclude_modules") if section.has(key)]
    return ModelOpt(ALGORITHMS[algorithm], tuple(name for names in lists for name in names))
