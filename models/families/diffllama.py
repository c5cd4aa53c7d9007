"""DiffLlama: Llama whose heads give the difference of two attentions, in heads of twice the size in the cache."""

import math
from dataclasses import replace

from jaxllm.models.attention_plan import DifferencePlan
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import Source
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import read_llama, with_biases
from jaxllm.models.families.family import LLAMA_NAMES, Family, Names
from jaxllm.models.families.rotary import read_rope


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """DiffLlama's configuration."""
    file = file.reading(max_position_embeddings=2048, rms_norm_eps=1e-5)
    # Of use where weights are drawn.
    file.ignore("lambda_std_dev")
    options, bias = read_llama(file), file.boolean("attention_bias", False)
    if options["num_kv_heads"] % 2:
        raise file.wrong("num_key_value_heads", "even: values are in two halves")
    size, eps = options["head_size"], file.number("rms_norm_eps", 1e-5)
    layers = with_biases(options["layers"], qkv=bias, output=bias)
    rope = replace(read_rope(file), head_size=size)
    options["head_size"] = 2 * size
    options["layers"] = tuple(
        layer.attending(
            rope=rope,
            scale=size**-0.5,
            key_size=size,
            value_size=size,
            difference=DifferencePlan(initial=0.8 - 0.6 * math.exp(-0.3 * number), eps=eps),
        )
        for number, layer in enumerate(layers)
    )
    return ModelConfig(architecture=architecture, **options)


_PARTS = {"query_1": ".lambda_q1", "key_1": ".lambda_k1", "query_2": ".lambda_q2", "key_2": ".lambda_k2"}

NAMES: Names = {
    **LLAMA_NAMES,
    "layers.*.attention.difference": Source("model.layers.*.self_attn", endings=_PARTS),
}

FAMILY = Family(read_config, weight_names=NAMES)
