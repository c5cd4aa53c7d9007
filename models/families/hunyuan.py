"""HunYuan, dense: heads are normalised behind the rotary embedding, whose base is stretched by alpha."""

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import read_llama, with_biases
from jaxllm.models.families.family import LLAMA_NAMES, Family


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """HunYuan's configuration."""
    file = file.reading(max_position_embeddings=2048, rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2)
    bias, options = file.boolean("attention_bias", False), read_llama(file)
    layers = with_biases(options["layers"], qkv=bias, output=bias)
    options["layers"] = tuple(layer.attending(norm=options["norm"], norm_is_last=True) for layer in layers)
    return ModelConfig(architecture=architecture, **options)


FAMILY = Family(
    read_config,
    weight_names={
        **LLAMA_NAMES,
        "layers.*.attention.query_norm": "model.layers.*.self_attn.query_layernorm",
        "layers.*.attention.key_norm": "model.layers.*.self_attn.key_layernorm",
    },
)
