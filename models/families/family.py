"""The differences between model families."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import jax.numpy as jnp
from flax import nnx

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import Source
from jaxllm.models.config import ModelConfig
from jaxllm.models.layers.fused_decoder import make_decoder_layer
from jaxllm.models.options import ForwardOptions
from jaxllm.models.plan import LayerPlan

LayerFactory = Callable[[ModelConfig, LayerPlan, ForwardOptions, jnp.dtype], nnx.Module]
"""Builds the layer of a plan, see `DecoderLayer`, without memory: parameters hold `jax.ShapeDtypeStruct`."""

EncoderFactory = Callable[[ModelConfig, ForwardOptions, jnp.dtype], nnx.Module]
"""Builds an encoder without memory, see `jaxllm.models.pooling_model.Backbone`."""

SharedFactory = Callable[[ModelConfig, ForwardOptions, jnp.dtype], nnx.List[nnx.Module]]
"""Builds the blocks that layers have in common, without memory, see `SharedBlocks`."""

Use = Literal["generate", "embed", "classify", "token_embed", "token_classify"]
"""The use that an architecture is made for."""

Names = Mapping[str, "str | Source"]
"""Names of modules in a checkpoint, or where else their tensors come from."""

LLAMA_NAMES: Mapping[str, str] = {
    "embedding": "model.embed_tokens",
    "norm": "model.norm",
    "head": "lm_head",
    "layers.*.attention_norm": "model.layers.*.input_layernorm",
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

SANDWICH_NAMES: Names = {
    **LLAMA_NAMES,
    "layers.*.attention_output_norm": "model.layers.*.post_attention_layernorm",
    "layers.*.mlp_norm": "model.layers.*.pre_feedforward_layernorm",
    "layers.*.mlp_output_norm": "model.layers.*.post_feedforward_layernorm",
}
"""Names of layers with norms after their blocks, as Gemma 2 and OLMo 2 call them."""

TEXT_PARTS: Mapping[str, str] = {
    "language_model.model.": "model.",
    "model.language_model.": "model.",
    "language_model.lm_head.": "lm_head.",
}
"""Where checkpoints of models that also see images have their language model."""

OTHER_PARTS = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.")
"""What else is in them."""


def expert_names(block: str, gate: str = "gate_proj", up: str = "up_proj", down: str = "down_proj") -> dict[str, str]:
    """Names of a mixture of experts in layers' `block`, each expert's tensors under its number."""
    inside = f"model.layers.*.{block}"
    return {
        "layers.*.mlp.router": f"{inside}.gate",
        "layers.*.mlp.expert_gate": f"{inside}.experts.{{expert}}.{gate}",
        "layers.*.mlp.expert_up": f"{inside}.experts.{{expert}}.{up}",
        "layers.*.mlp.expert_down": f"{inside}.experts.{{expert}}.{down}",
    }


MOST_FURTHER_LAYERS = 8
"""At most this many layers predict further tokens; most models have one, and some have three."""


def further_layers(config: ModelConfig) -> tuple[str, ...]:
    """Where checkpoints have layers after the last, which predict further tokens."""
    behind = range(config.num_layers, config.num_layers + MOST_FURTHER_LAYERS)
    return tuple(f"model.layers.{number}." for number in behind)


def read_mtp_layers(file: ConfigFile, default: int = 0) -> int:
    """How many layers predict further tokens, by the names that configurations of several families have for it."""
    counts = [
        file.integer(key, minimum=0)
        for key in ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers")
        if file.has(key)
    ]
    return max(counts, default=default)


@dataclass(frozen=True)
class MtpNames:
    """What checkpoints call the layer that predicts a further token, and the parts around it.

    `{layer}` stands for its number after the layers of the model, and `{number}` for its own, from 0 on. The norms and
    the product that join a token's embedding with the hidden state before it, the layer itself, in place of
    "model.layers.*", and the norm after it, if there is one. The product takes the embedding first, unless
    `hidden_first`. The layer is like the last one of the model that has attention, or like its first.
    """

    embedding_norm: str
    hidden_norm: str
    joint: str
    layer: str
    norm: str | None
    hidden_first: bool = False
    like_first: bool = False


FURTHER_LAYER = MtpNames(
    embedding_norm="model.layers.{layer}.enorm",
    hidden_norm="model.layers.{layer}.hnorm",
    joint="model.layers.{layer}.eh_proj",
    layer="model.layers.{layer}",
    norm="model.layers.{layer}.shared_head.norm",
)
"""Names of a layer after the last, as DeepSeek V3 calls it."""


@dataclass(frozen=True)
class HeadPlan:
    """The classifier after a model: an inner layer with its activation and a norm, if any, and the outer one.

    It has `labels` classes, or as many as the configuration says. `step_token_id` is the token after the steps of an
    answer, if scores of tokens are meant for these alone.
    """

    dense: bool = False
    dense_bias: bool = True
    activation: str = "tanh"
    norm: bool = False
    norm_eps: float = 1e-5
    bias: bool = False
    labels: int | None = None
    step_token_id: int | None = None


@dataclass(frozen=True)
class Family:
    """Config map, layer plan and weight names: all that `CausalLM` needs to know of a family.

    `read_config` gets the configuration file and the architecture's name. `weight_names` and `other_parts` may follow
    from the configuration. Checkpoint tensors whose name ends with one of `ignored_tensors`, or begins with one of
    `other_parts`, may be there without being used. The prefixes in `renamed` of names in the checkpoint are replaced
    first, longest first; `omitted` is left out where it stands before the end of a name. Where transformers calls a
    part of a module's name otherwise than checkpoints do, `synonyms` has that by its own: adapters have either.

    A family that transformers does not have is compared with one there that computes the same: `like`. With `mtp` its
    checkpoints may have a layer that predicts a further token, as many as `ModelConfig.mtp_layers` says.

    What an architecture is made for is its `use`: to generate, to embed, or to classify, the last two of whole texts or
    of each of their tokens, which `PoolingModel` does. `make_encoder` builds what stands in a decoder's place,
    `make_shared` what the layers of a decoder have in common. `head` and `head_names` describe the classifier of those
    that have one; tensors that begin with one of `other_heads` belong to another use. Checkpoints may leave `prefix`
    out of their names. A layer that makes vectors of single tokens has tensors beginning with `token_head` ("linear."),
    or is in a file of that name ("colbert_linear.pt"); likewise `lexical_head` for one that makes a weight of each.
    """

    read_config: Callable[[ConfigFile, str], ModelConfig]
    make_layer: LayerFactory = make_decoder_layer
    weight_names: Names | Callable[[ModelConfig], Names] = field(default_factory=lambda: LLAMA_NAMES)
    ignored_tensors: tuple[str, ...] = (".rotary_emb.inv_freq",)
    other_parts: tuple[str, ...] | Callable[[ModelConfig], tuple[str, ...]] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    synonyms: Mapping[str, str] = field(default_factory=dict)
    omitted: str = ""
    use: Use = "generate"
    make_encoder: EncoderFactory | None = None
    make_shared: SharedFactory | None = None
    head: HeadPlan = HeadPlan()
    head_names: Mapping[str, str] = field(default_factory=lambda: {"out": "score"})
    other_heads: tuple[str, ...] = ("lm_head.",)
    prefix: str = "model."
    token_head: str = ""
    lexical_head: str = ""
    like: str | None = None
    mtp: MtpNames | None = None

    def names_of(self, config: ModelConfig) -> Names:
        """The weight names of a model."""
        return self.weight_names(config) if callable(self.weight_names) else self.weight_names

    def other_parts_of(self, config: ModelConfig) -> tuple[str, ...]:
        """Prefixes of the names of tensors that a model does not use."""
        return self.other_parts(config) if callable(self.other_parts) else self.other_parts
