"""GPT-Neo: GPT-2 with windows on every second layer, and scores that are not scaled."""

from typing import Any

from jaxllm.models.attention_plan import AttentionPlan
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families import gpt
from jaxllm.models.families.common import read_sizes
from jaxllm.models.families.family import Family
from jaxllm.models.families.gpt2 import ENDS, NAMES
from jaxllm.models.layers.activation import read_activation
from jaxllm.models.mlp_plan import MLPPlan
from jaxllm.models.plan import EmbeddingPlan, LayerPlan

KEYS = {
    "intermediate_size": "intermediate_size",
    "num_attention_heads": "num_heads",
    "num_hidden_layers": "num_layers",
}


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """GPT-Neo's configuration; `attention_types` has patterns of layers, and how often each is repeated."""
    file = gpt.reading(file, KEYS, tie_word_embeddings=True, max_position_embeddings=2048, **ENDS)
    file.ignore("attention_layers", *gpt.UNUSED)
    sizes, norm, window = read_sizes(file), gpt.read_layer_norm(file), file.integer("window_size", 256)
    layer = LayerPlan(
        attention=AttentionPlan(rope=None, scale=1.0, output_bias=True),
        mlp=MLPPlan(activation=read_activation(file, "activation_function", "gelu_new"), is_gated=False, bias=True),
        attention_norm=norm,
        mlp_norm=norm,
    )
    return ModelConfig(
        architecture=architecture,
        **sizes,
        layers=tuple(layer.attending(window=window if local else 0) for local in _are_local(file)),
        norm=norm,
        embedding=EmbeddingPlan(positions=sizes["max_position_embeddings"]),
    )


def _are_local(file: ConfigFile) -> list[bool]:
    """Which layers have a window."""
    count, kinds = file.integer("num_hidden_layers"), []
    for each in file.array("attention_types", [[["global", "local"], 12]]):
        if not (isinstance(each, list) and len(each) == 2 and _is_pattern(*each)):
            raise file.wrong("attention_types", "a list of patterns of 'global' and 'local', each with a number")
        pattern, times = each
        # No more than are needed, whatever the file says.
        kinds += pattern * min(times, count)
    if len(kinds) != count:
        raise file.wrong("attention_types", f"patterns for {count} layers")
    return [kind == "local" for kind in kinds]


def _is_pattern(pattern: Any, times: Any) -> bool:
    is_list = isinstance(pattern, list) and all(kind in ("global", "local") for kind in pattern)
    return is_list and isinstance(times, int) and not isinstance(times, bool)


FAMILY = Family(
    read_config,
    weight_names={
        **NAMES,
        "layers.*.attention.query": "transformer.h.*.attn.attention.q_proj",
        "layers.*.attention.key": "transformer.h.*.attn.attention.k_proj",
        "layers.*.attention.value": "transformer.h.*.attn.attention.v_proj",
        "layers.*.attention.output": "transformer.h.*.attn.attention.out_proj",
        "layers.*.mlp.up": "transformer.h.*.mlp.c_fc",
        "layers.*.mlp.down": "transformer.h.*.mlp.c_proj",
    },
    ignored_tensors=(*gpt.BUFFERS, ".attn.attention.bias", ".attn.attention.masked_bias"),
    renamed=gpt.with_prefix("transformer.", "wte", "wpe", "h", "ln_f"),
    prefix="transformer.",
)
