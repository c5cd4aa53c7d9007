"""What makes one model family different from another."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.config import ModelConfig
from jaxllm.models.config_file import ConfigFile
from jaxllm.models.layers.decoder import DecoderLayer
from jaxllm.models.layers.rope import Rotation
from jaxllm.models.options import ForwardOptions
from jaxllm.pallas_kernels.paged_attention.ragged import RaggedBatch


class Layer(Protocol):
    """A decoder layer: an `nnx.Module` that is called like this (see `DecoderLayer`)."""

    def __call__(
        self,
        x: jax.Array,
        rotation: Rotation,
        ragged: RaggedBatch,
        kv_cache: jax.Array,
        layer: int | jax.Array,
        window: int | jax.Array | None,
    ) -> tuple[jax.Array, jax.Array]:
        """Map `x` [T, D] to [T, D] and update the cache."""
        ...


LayerFactory = Callable[[ModelConfig, ForwardOptions, int, jnp.dtype], nnx.Module]
"""Builds layer number `int` without memory: parameters hold `jax.ShapeDtypeStruct`."""

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
class Family:
    """Config map, layer plan and weight names: all that `CausalLM` needs to know of a family.

    `read_config` gets the configuration file and the architecture's name. Checkpoint tensors whose name ends with one
    of `ignored_tensors` may be there without being used.
    """

    read_config: Callable[[ConfigFile, str], ModelConfig]
    make_layer: LayerFactory = DecoderLayer
    weight_names: Mapping[str, str] = field(default_factory=lambda: LLAMA_NAMES)
    ignored_tensors: tuple[str, ...] = (".rotary_emb.inv_freq",)
