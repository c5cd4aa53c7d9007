"""GLM-4: half of each head is rotated, neighbours in pairs; the 0414 releases also have norms after blocks."""

from typing import Any

from jaxllm.models.attention_plan import RopeConfig
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import fused
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import read_llama, with_biases, with_norms
from jaxllm.models.families.family import LLAMA_NAMES, Family, Names


def read_glm(file: ConfigFile, architecture: str) -> ModelConfig:
    """GLM's configuration."""
    return ModelConfig(architecture=architecture, **_options(file))


def read_glm4(file: ConfigFile, architecture: str, rope: RopeConfig | None = None) -> ModelConfig:
    """The configuration of GLM-4-0414. Its rotary embedding may be given."""
    options = _options(file, rope)
    norm = options["norm"]
    options["layers"] = with_norms(options["layers"], attention_output_norm=norm, mlp_output_norm=norm)
    return ModelConfig(architecture=architecture, **options)


def _options(file: ConfigFile, rope: RopeConfig | None = None) -> dict[str, Any]:
    sizes = {"num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 131072}
    file = file.reading(**sizes, partial_rotary_factor=0.5, rms_norm_eps=0.00000015625)
    options = read_llama(file, interleaved=True, rope=rope)
    bias = file.boolean("attention_bias", True)
    return options | {"layers": with_biases(options["layers"], qkv=bias, output=False)}


def weight_names(config: ModelConfig) -> Names:
    """Gates and what they gate are one tensor."""
    mlp = fused("model.layers.*.mlp.gate_up_proj", {"gate": config.intermediate_size, "up": config.intermediate_size})
    return {**LLAMA_NAMES, **{f"layers.*.mlp.{name}": source for name, source in mlp.items()}}


def glm4_names(config: ModelConfig) -> Names:
    """And norms after the blocks."""
    behind = {
        "layers.*.attention_output_norm": "model.layers.*.post_self_attn_layernorm",
        "layers.*.mlp_output_norm": "model.layers.*.post_mlp_layernorm",
    }
    return {**weight_names(config), **behind}


FAMILY = Family(read_glm, weight_names=weight_names)
GLM4 = Family(read_glm4, weight_names=glm4_names)
