"""StarCoder 2: LayerNorm, biases everywhere, and feed-forward blocks without a gate."""

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import read_llama, with_biases, with_norms, without_gates
from jaxllm.models.families.family import LLAMA_NAMES, Family
from jaxllm.models.norm_plan import NormPlan


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """StarCoder 2's configuration; one switch for all biases but those of norms."""
    ids = {"bos_token_id": 50256, "eos_token_id": 50256}
    defaults = {"num_key_value_heads": 2, "hidden_act": "gelu_pytorch_tanh", "max_position_embeddings": 4096}
    file = file.reading(**defaults, **ids, tie_word_embeddings=True)
    norm, bias = (
        NormPlan(kind="layer", eps=file.number("norm_epsilon", 1e-5), bias=True),
        file.boolean("use_bias", True),
    )
    file.ignore("*_softmax_in_fp32")
    file.expect(mlp_type="default", norm_type="layer_norm", scale_attn_weights=True, layer_norm_epsilon=norm.eps)
    options = read_llama(file)
    layers = with_biases(options["layers"], qkv=bias, output=bias, mlp=bias)
    options["layers"] = without_gates(with_norms(layers, attention_norm=norm, mlp_norm=norm))
    config = ModelConfig(architecture=architecture, **(options | {"norm": norm}))
    return config.with_windows((file.optional_integer("sliding_window") or 0,) * config.num_layers)


FAMILY = Family(
    read_config,
    weight_names={
        **LLAMA_NAMES,
        "layers.*.mlp.up": "model.layers.*.mlp.c_fc",
        "layers.*.mlp.down": "model.layers.*.mlp.c_proj",
    },
)
