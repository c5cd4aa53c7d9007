"""What makes one model family different from another."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import jax.numpy as jnp
from flax import nnx

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.layers.decoder import make_decoder_layer
from jaxllm.models.options import ForwardOptions

LayerFactory = Callable[[ModelConfig, ForwardOptions, int, jnp.dtype], nnx.Module]
"""Builds layer number `int`, see `DecoderLayer`, without memory: parameters hold `jax.ShapeDtypeStruct`."""

EncoderFactory = Callable[[ModelConfig, ForwardOptions, jnp.dtype], nnx.Module]
"""Builds an encoder without memory, see `jaxllm.models.pooling_model.Backbone`."""

LLAMA_NAMES: Mapping[str, str] = {
    "embedding": "model.embed_tokens",
    "norm": "model.norm",
    "head": "lm_head",
    "layers.*.input_norm": "model.layers.*.input_layernorm",
    "layers.*.attention.query": "model.layers.*.self_attn.q_proj",
    "layers.*.attention.key": "model.layers.*.self_attn.k_proj",
    "layers.*.attention.value": "model.layers.*.self_attn.v_proj",
    "layers.*.attention.output": "model.layers.*.self_attn.o_proj",
    "layers.*.attention.query_norm": "model.layers.*.self_attn.q_norm",
    "layers.*.attention.key_norm": "model.layers.*.self_attn.k_norm",
    "layers.*.mlp_norm": "model.layers.*.post_attention_layernorm",
    "layers.*.mlp.gate": "model.layers.*.mlp.gate_proj",
    "layers.*.mlp.up": "model.layers.*.mlp.up_proj",
    "layers.*.mlp.down": "model.layers.*.mlp.down_proj",
}
"""Our modules and the checkpoint's; `*` is the number of the layer. The parameter's own name follows both."""


@dataclass(frozen=True)
class HeadPlan:
    """The classifier behind a model: an inner layer with its activation and a norm, if any, and the outer one."""

    dense: bool = False
    dense_bias: bool = True
    activation: str = "tanh"
    norm: bool = False
    norm_eps: float = 1e-5
    bias: bool = False


@dataclass(frozen=True)
class Family:
    """Config map, layer plan and weight names: all that `CausalLM` needs to know of a family.

    `read_config` gets the configuration file and the architecture's name. Checkpoint tensors whose name ends with one
    of `ignored_tensors` may be there without being used.

    What an architecture is made for is its `use`: to generate, to embed, or to classify, which `PoolingModel` does the
    last two of. `make_encoder` builds what stands in a decoder's place. `head` and `head_names` describe the classifier
    of those that have one; tensors that begin with one of `other_heads` belong to another use. Checkpoints may leave
    `prefix` out of their names.
    """

    read_config: Callable[[ConfigFile, str], ModelConfig]
    make_layer: LayerFactory = make_decoder_layer
    weight_names: Mapping[str, str] = field(default_factory=lambda: LLAMA_NAMES)
    ignored_tensors: tuple[str, ...] = (".rotary_emb.inv_freq",)
    use: Literal["generate", "embed", "classify"] = "generate"
    make_encoder: EncoderFactory | None = None
    head: HeadPlan = HeadPlan()
    head_names: Mapping[str, str] = field(default_factory=lambda: {"out": "score"})
    other_heads: tuple[str, ...] = ("lm_head.",)
    prefix: str = "model."
