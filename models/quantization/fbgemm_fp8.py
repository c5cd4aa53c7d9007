"""Checkpoints of method 'fbgemm_fp8': float8 with a scale per output, activations with one per token.

Meta's checkpoints of Llama 3.1 405B are of this kind. Format: transformers' `FbgemmFp8Config`.
"""

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.quantization.fp8 import Fp8
from jaxllm.models.quantization.module_names import read_names
from jaxllm.models.quantization.scaled_values import ScaledValues
from jaxllm.pallas_kernels.linear.weight_type import Activations, Values

_BOUND = ("input_scale_ub",)
"""A tensor with the bound on activations, once more for each matrix."""


def read_format(section: ConfigFile) -> Fp8:
    """From the section of config.json. Raises `ModelError`, which names the field."""
    # A bound on what the scale of a token is made from: without it the largest activations stay as they are.
    section.ignore("activation_scale_ub")
    whole = ScaledValues(Values.FLOAT8_E4M3, "channel", activations=Activations.PER_TOKEN, ignored=_BOUND)
    return Fp8(whole, read_names(section, "modules_to_not_convert"))
