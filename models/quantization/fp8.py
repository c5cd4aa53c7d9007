"""Checkpoints of method 'fp8': float8 with a scale per tensor, or per block as DeepSeek-V3 has them.

Formats: arXiv 2412.19437, section 3.3, whose scales are called `weight_scale_inv` although numbers are multiplied by
them; AutoFP8 (https://github.com/neuralmagic/AutoFP8), whose scales are `weight_scale` and `input_scale`; and
transformers' FineGrainedFP8Config, which calls them `weight_scale_inv` and `activation_scale` in both cases.
"""

from dataclasses import dataclass

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.quantization.by_module import ByModule
from jaxllm.models.quantization.matrix_format import MatrixFormat
from jaxllm.models.quantization.module_names import is_in_block, is_named, read_names
from jaxllm.models.quantization.module_tensors import FLOATS
from jaxllm.models.quantization.scaled_values import ScaledValues, whole_blocks
from jaxllm.pallas_kernels.linear.weight_type import Activations, Values

_SCALE = ("weight_scale_inv", "weight_scale")
_INPUT_SCALE = ("input_scale", "activation_scale")


@dataclass(frozen=True)
class Fp8(ByModule):
    """Matrices of the layers, but for those that are `ignored`."""

    format: ScaledValues
    ignored: tuple[str, ...] = ()

    def format_of(self, module: str) -> MatrixFormat | None:
        """See `ByModule`."""
        if not is_in_block(module) or is_named(module, self.ignored):
            return None
        return self.format


def read_format(section: ConfigFile) -> Fp8:
    """From the section of config.json. Raises `ModelError`, which names the field."""
    section.ignore("dequantize")
    if section.text("fmt", "e4m3") not in ("e4m3", "float8_e4m3fn"):
        raise section.wrong("fmt", "'e4m3'")
    if section.text("expert_dtype", "fp8") != "fp8":
        raise section.wrong("expert_dtype", "'fp8'")
    scale_format = section.text("scale_fmt", "float")
    if scale_format not in ("float", "ue8m0"):
        raise section.wrong("scale_fmt", "'float' or 'ue8m0'")
    scheme = section.text("activation_scheme", "dynamic").lower()
    if scheme not in ("dynamic", "static"):
        raise section.wrong("activation_scheme", "'dynamic' or 'static'")
    ignored = read_names(section, "modules_to_not_convert", "ignored_layers")
    # Exponents of two may be bytes, or floats as if they were none.
    types = (*FLOATS, "F8_E8M0", "U8") if scale_format == "ue8m0" else FLOATS
    if not section.has("weight_block_size"):
        activations = Activations.STATIC if scheme == "static" else Activations.PER_TOKEN
        unused = () if scheme == "static" else _INPUT_SCALE
        whole = ScaledValues(
            Values.FLOAT8_E4M3, "tensor", None, False, activations, _SCALE, _INPUT_SCALE, types, unused
        )  # fmt: skip
        return Fp8(whole, ignored)
    block = whole_blocks(f"{section.source}: 'weight_block_size'", section.integers("weight_block_size"))
    # Activations have a scale for each block in training. Unrounded ones are closer to what was rounded.
    return Fp8(ScaledValues(Values.FLOAT8_E4M3, "block", block, scale=_SCALE, scale_types=types,
                            ignored=_INPUT_SCALE), ignored)  # fmt: skip
