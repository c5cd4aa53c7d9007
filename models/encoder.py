"""Encoders as BERT has them (arXiv 1810.04805): learned positions, and norms after attention and feed-forward."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.batch import PackedSequences
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.errors import ModelError
from jaxllm.models.forward_context import ForwardContext
from jaxllm.models.layers.activation import ACTIVATIONS, read_activation
from jaxllm.models.layers.adapter_slots import add_adapter_slots
from jaxllm.models.layers.disentangled_attention import DisentangledAttention, DistanceRows, Distances, RelativePlan
from jaxllm.models.layers.embedding import Embedding, Table
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.norm import make_norm
from jaxllm.models.mlp_plan import MLPPlan
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.options import ForwardOptions
from jaxllm.models.plan import LayerPlan
from jaxllm.pallas_kernels.segment_attention.api import segment_attention
from jaxllm.pallas_kernels.segment_attention.segments import Segments


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(ModelConfig):
    """The fields that an encoder adds.

    Position p takes row p + `position_offset` of a table that has as many more rows; `token_types` is the number of
    types, 0 for none. Where tables have columns of their own, `table_size`, a product maps their sum to the hidden
    size. Where layers share weights, layer i has those of number `weights_of[i]`. Without `learned_positions` there is
    no such table; attention may see distances (`relative`).
    """

    learned_positions: bool = True
    relative: RelativePlan | None = None
    position_offset: int = 0
    token_types: int = 0
    table_size: int | None = None
    weights_of: tuple[int, ...] = ()


def encoder_options(file: ConfigFile, *, positions: int, offset: int = 0, **names: str) -> dict[str, Any]:
    """`EncoderConfig` arguments that BERT-like configurations share; `names` are the keys that differ from BERT's.

    `positions` is the family's default. Raises `ModelError` for what would change the result unnoticed.
    """

    def key(name: str) -> str:
        return names.get(name, name)

    # What is only for predicting masked tokens, or for caches of decoders.
    file.ignore("tie_word_embeddings", "use_cache", "sinusoidal_pos_embds", "qa_dropout", "gradient_checkpointing")
    file.ignore("pooler_*", "directionality", "tie_weights_", "summary_*")
    kind = file.text("position_embedding_type", "absolute")
    if kind != "absolute" or file.boolean("is_decoder", False):
        raise ModelError(
            f"{file.source}: only encoders with absolute positions are supported, not position_embedding_type={kind!r} "
            f"or is_decoder=true"
        )
    hidden_size, heads = file.integer(key("hidden_size")), file.integer(key("num_attention_heads"))
    if hidden_size % heads:
        raise ModelError(f"{file.source}: {heads} heads do not divide the hidden size {hidden_size}")
    activation = read_activation(file, key("hidden_act"), "gelu")
    norm = NormPlan(kind="layer", eps=file.number("layer_norm_eps", 1e-12), bias=True)
    layer = LayerPlan(mlp=MLPPlan(activation=activation, is_gated=False), attention_norm=norm, mlp_norm=norm)
    return {
        "vocab_size": file.integer("vocab_size"),
        "hidden_size": hidden_size,
        "layers": (layer,) * file.integer(key("num_hidden_layers")),
        "norm": norm,
        "num_heads": heads,
        "num_kv_heads": heads,
        "head_size": hidden_size // heads,
        "intermediate_size": file.integer(key("intermediate_size")),
        "max_position_embeddings": file.integer("max_position_embeddings", positions) - offset,
        "position_offset": offset,
    }


class Encoder(nnx.Module):
    """Embeddings of tokens, positions and types, then layers."""

    def __init__(self, config: ModelConfig, options: ForwardOptions, dtype: jnp.dtype) -> None:
        assert isinstance(config, EncoderConfig)
        self.config = config
        columns = config.table_size or config.hidden_size
        self.embedding = Embedding(replace(config, hidden_size=columns), options, dtype=dtype)
        rows = config.max_position_embeddings + config.position_offset
        self.positions = Table(rows, columns, dtype, options) if config.learned_positions else None
        self.types = Table(config.token_types, columns, dtype, options) if config.token_types else None
        self.norm = make_norm(config.norm, columns, dtype=dtype, options=options)
        project = partial(Linear, columns, config.hidden_size, bias=True, dtype=dtype, axes=(None, None))
        self.projection = project(options=options) if config.table_size else None
        relative = config.relative
        self.distances = None if relative is None else Distances(config, relative, options, dtype=dtype)
        own = config.layers[: max(config.weights_of) + 1] if config.weights_of else config.layers
        self.layers = nnx.List([EncoderLayer(config, plan, options, dtype) for plan in own])
        if options.adapters is not None:
            add_adapter_slots(self, options.adapters)

    def __call__(self, texts: PackedSequences) -> jax.Array:
        """Hidden states [T, D] of the last layer."""
        x = self.embedding(texts.token_ids)
        if self.positions is not None:
            x = x + self.positions(texts.segments.positions + self.config.position_offset)
        if self.types is not None:
            x = x + self.types(texts.token_types)
        x = self.norm(x)
        if self.projection is not None:
            x = self.projection(x, texts.context)
        told = None if self.distances is None else self.distances()
        for number in self.config.weights_of or range(len(self.layers)):
            x = self.layers[number](x, texts.segments, texts.context, told)
        return x


class EncoderLayer(nnx.Module):
    """`x = norm(x + attention(x))`, then `x = norm(x + mlp(x))`."""

    def __init__(self, config: EncoderConfig, plan: LayerPlan, options: ForwardOptions, dtype: jnp.dtype) -> None:
        size = config.hidden_size
        norm = partial(make_norm, plan.mlp_norm, size, dtype=dtype, options=options)
        linear = partial(Linear, bias=True, dtype=dtype, axes=(None, None), options=options)
        relative = config.relative
        self.attention = (
            SelfAttention(config, options, dtype)
            if relative is None
            else DisentangledAttention(config, relative, options, dtype=dtype)
        )
        self.attention_norm = norm()
        self.up = linear(size, config.intermediate_size)
        self.down = linear(config.intermediate_size, size)
        self.mlp_norm = norm()
        self.activation = plan.mlp.activation

    def __call__(
        self, x: jax.Array, segments: Segments, context: ForwardContext, distances: DistanceRows | None
    ) -> jax.Array:
        """Map [T, D] to [T, D]; `distances` are the model's, if its attention sees them."""
        if isinstance(self.attention, SelfAttention):
            attended = self.attention(x, segments, context)
        else:
            assert distances is not None
            attended = self.attention(x, segments, context, distances)
        x = self.attention_norm(x + attended)
        return self.mlp_norm(x + self.down(ACTIVATIONS[self.activation](self.up(x, context)), context))


class SelfAttention(nnx.Module):
    """Attention of every token to its whole text."""

    def __init__(self, config: EncoderConfig, options: ForwardOptions, dtype: jnp.dtype) -> None:
        size = config.hidden_size
        linear = partial(Linear, size, size, bias=True, dtype=dtype, axes=(None, None), options=options)
        self.query, self.key, self.value, self.output = linear(), linear(), linear(), linear()
        self.head_size = config.head_size

    def __call__(self, x: jax.Array, segments: Segments, context: ForwardContext) -> jax.Array:
        """Map [T, D] to [T, D]."""
        query, key, value = (
            project(x, context).reshape(len(x), -1, self.head_size) for project in (self.query, self.key, self.value)
        )
        attended = segment_attention(query, key, value, segments, scale=self.head_size**-0.5)
        return self.output(attended.reshape(x.shape), context)
