"""BitNet: Llama with norms before the last product of each block, whose matrices have three values."""

from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import read_llama, with_biases
from jaxllm.models.families.family import LLAMA_NAMES, Family, Names


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """BitNet's configuration; what matrices are rounded to is in its section of quantization."""
    sizes = {"num_key_value_heads": 5, "rms_norm_eps": 1e-5, "rope_theta": 500_000.0, "hidden_act": "relu2"}
    file = file.reading(**sizes, max_position_embeddings=2048, bos_token_id=128_000, eos_token_id=128_001)
    options, bias = read_llama(file), file.boolean("attention_bias", False)
    layers = with_biases(options["layers"], qkv=bias, output=bias)
    norm = options["norm"]
    layers = tuple(replace(layer.attending(output_norm=norm), mlp=replace(layer.mlp, norm=norm)) for layer in layers)
    return ModelConfig(architecture=architecture, **(options | {"layers": layers}))


NAMES: Names = {
    **LLAMA_NAMES,
    "layers.*.attention.output_norm": "model.layers.*.self_attn.attn_sub_norm",
    "layers.*.mlp.norm": "model.layers.*.mlp.ffn_sub_norm",
}

FAMILY = Family(read_config, weight_names=NAMES)
