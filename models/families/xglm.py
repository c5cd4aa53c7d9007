"""XGLM and CTRL: positions as sines and cosines, added to embeddings that are multiplied by a square root."""

from collections.abc import Mapping
from typing import Any

from jaxllm.models.attention_plan import AttentionPlan
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families import gpt
from jaxllm.models.families.common import read_sizes
from jaxllm.models.families.family import Family, Names
from jaxllm.models.families.opt import UNUSED_ROWS
from jaxllm.models.layers.activation import read_activation
from jaxllm.models.mlp_plan import MLPPlan
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.plan import EmbeddingPlan, LayerPlan, OutputPlan

_NAMES = {
    "hidden_size": "d_model",
    "intermediate_size": "ffn_dim",
    "num_attention_heads": "attention_heads",
    "num_hidden_layers": "num_layers",
}


def read_xglm(file: ConfigFile, architecture: str) -> ModelConfig:
    """XGLM's configuration."""
    ends = {"bos_token_id": 0, "eos_token_id": 2}
    file = file.reading(_NAMES, tie_word_embeddings=True, max_position_embeddings=2048, **ends)
    file.ignore("layerdrop", "decoder_start_token_id")
    file.expect(add_cross_attention=False)
    if (file.optional_integer("pad_token_id", 1, minimum=0) or 0) >= UNUSED_ROWS:
        raise file.wrong("pad_token_id", "0 or 1: the position with that number would be zeros")
    activation = read_activation(file, "activation_function", "gelu")
    scale = file.integer("hidden_size") ** 0.5 if file.boolean("scale_embedding", True) else 1.0
    embedding = EmbeddingPlan(
        scale=scale,
        scaled=True,
        position_offset=UNUSED_ROWS,
        sinusoids=file.integer("hidden_size") / 2 - 1,
    )
    norm = NormPlan(kind="layer", eps=1e-5, bias=True)
    return _read(file, architecture, activation, norm, norm=norm, embedding=embedding)


def read_ctrl(file: ConfigFile, architecture: str) -> ModelConfig:
    """CTRL's configuration, whose eps is that of the last norm alone."""
    names = {**gpt.KEYS, "intermediate_size": "dff"}
    file = file.reading(names, tie_word_embeddings=True, max_position_embeddings=256, intermediate_size=8192)
    file.ignore(*gpt.UNUSED)
    size = file.integer("hidden_size")
    return _read(
        file,
        architecture,
        "relu",
        NormPlan(kind="layer", eps=1e-6, bias=True),
        norm=NormPlan(kind="layer", eps=file.number("layer_norm_epsilon", 1e-6), bias=True),
        embedding=EmbeddingPlan(scale=size**0.5, sinusoids=size / 2),
        output=OutputPlan(bias=True),
    )


def _read(file: ConfigFile, architecture: str, activation: str, inner: NormPlan, **options: Any) -> ModelConfig:
    """What both have, with `inner` norms of layers; `options` are others of `ModelConfig`."""
    sizes = read_sizes(file)
    if sizes["hidden_size"] % 2:
        raise file.wrong("hidden_size", "even: half of it are sines of positions")
    layer = LayerPlan(
        attention=AttentionPlan(rope=None, qkv_bias=True, output_bias=True),
        mlp=MLPPlan(activation=activation, is_gated=False, bias=True),
        attention_norm=inner,
        mlp_norm=inner,
    )
    layers = (layer,) * file.integer("num_hidden_layers")
    return ModelConfig(architecture=architecture, **sizes, layers=layers, **options)


def _names(layers: str, inside: Mapping[str, str]) -> Names:
    """Names in the checkpoint of modules that are `inside` of layers, by ours."""
    return {f"layers.*.{ours}": f"{layers}.*.{theirs}" for ours, theirs in inside.items()}


_XGLM = {
    "attention_norm": "self_attn_layer_norm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.out_proj",
    "mlp_norm": "final_layer_norm",
    "mlp.up": "fc1",
    "mlp.down": "fc2",
}
_CTRL = {
    "attention_norm": "layernorm1",
    "attention.query": "multi_head_attention.Wq",
    "attention.key": "multi_head_attention.Wk",
    "attention.value": "multi_head_attention.Wv",
    "attention.output": "multi_head_attention.dense",
    "mlp_norm": "layernorm2",
    "mlp.up": "ffn.0",
    "mlp.down": "ffn.2",
}

FAMILY = Family(
    read_xglm,
    weight_names={
        "embedding": "model.embed_tokens",
        "norm": "model.layer_norm",
        "head": "lm_head",
        **_names("model.layers", _XGLM),
    },
    ignored_tensors=("embed_positions.weights",),
)
CTRL = Family(
    read_ctrl,
    weight_names={
        "embedding": "transformer.w",
        "norm": "transformer.layernorm",
        "head": "lm_head",
        "output_bias": "lm_head",
        **_names("transformer.h", _CTRL),
    },
    renamed=gpt.with_prefix("transformer.", "w", "h", "layernorm"),
    ignored_tensors=("pos_encoding",),
    prefix="transformer.",
)
