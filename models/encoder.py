"""Encoders as BERT has them (arXiv 1810.04805): learned positions, and norms behind attention and feed-forward."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.batch import PackedSequences
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.errors import ModelError, nearest
from jaxllm.models.layers.activation import ACTIVATIONS
from jaxllm.models.layers.embedding import Embedding
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.norm import LayerNorm
from jaxllm.models.layers.parameter import parameter
from jaxllm.models.options import ForwardOptions
from jaxllm.pallas_kernels.segment_attention.api import segment_attention
from jaxllm.pallas_kernels.segment_attention.segments import Segments


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(ModelConfig):
    """What an encoder adds.

    Position p takes row p + `position_offset` of a table that has as many more rows; `token_types` is the number of
    types, 0 for none.
    """

    layer_norm_eps: float = 1e-12
    position_offset: int = 0
    token_types: int = 0


def encoder_options(file: ConfigFile, *, positions: int, offset: int = 0, **names: str) -> dict[str, Any]:
    """`EncoderConfig` arguments that BERT-like configurations share; `names` are the keys that differ from BERT's.

    `positions` is the family's default. Raises `ModelError` for what would change the result unnoticed.
    """

    def key(name: str) -> str:
        return names.get(name, name)

    if file.section("quantization_config"):
        raise ModelError(f"{file.source}: quantised checkpoints are not supported yet ('quantization_config' is set)")
    kind = file.text("position_embedding_type", "absolute")
    if kind != "absolute" or file.boolean("is_decoder", False):
        raise ModelError(
            f"{file.source}: only encoders with absolute positions are supported, not position_embedding_type={kind!r} "
            f"or is_decoder=true"
        )
    hidden_size, heads = file.integer(key("hidden_size")), file.integer(key("num_attention_heads"))
    if hidden_size % heads:
        raise ModelError(f"{file.source}: {heads} heads do not divide the hidden size {hidden_size}")
    activation = file.text(key("hidden_act"), "gelu")
    if activation not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise ModelError(
            f"{file.source}: unknown activation {activation!r}{nearest(activation, ACTIVATIONS)} ({known})"
        )
    layers = file.integer(key("num_hidden_layers"))
    return {
        "vocab_size": file.integer("vocab_size"),
        "hidden_size": hidden_size,
        "num_layers": layers,
        "num_heads": heads,
        "num_kv_heads": heads,
        "head_size": hidden_size // heads,
        "intermediate_size": file.integer(key("intermediate_size")),
        "windows": (0,) * layers,
        "activation": activation,
        "max_position_embeddings": file.integer("max_position_embeddings", positions) - offset,
        "position_offset": offset,
    }


class Encoder(nnx.Module):
    """Embeddings of tokens, positions and types, then layers."""

    def __init__(self, config: ModelConfig, options: ForwardOptions, dtype: jnp.dtype) -> None:
        assert isinstance(config, EncoderConfig)
        self.config = config
        self.embedding = Embedding(config, options, dtype=dtype)
        self.positions = Table(config.max_position_embeddings + config.position_offset, config.hidden_size, dtype)
        self.types = Table(config.token_types, config.hidden_size, dtype) if config.token_types else None
        self.norm = LayerNorm(config.hidden_size, config.layer_norm_eps, dtype=dtype, options=options)
        self.layers = nnx.List([EncoderLayer(config, options, dtype) for _ in range(config.num_layers)])

    def __call__(self, texts: PackedSequences) -> jax.Array:
        """Hidden states [T, D] of the last layer."""
        x = self.embedding(texts.token_ids) + self.positions(texts.segments.positions + self.config.position_offset)
        if self.types is not None:
            x = x + self.types(texts.token_types)
        x = self.norm(x)
        for layer in self.layers:
            x = layer(x, texts.segments)
        return x


class Table(nnx.Module):
    """`weight` [rows, D], of which rows are looked up; an index beyond the last one takes that."""

    def __init__(self, rows: int, size: int, dtype: jnp.dtype) -> None:
        self.weight = parameter((rows, size), dtype)

    def __call__(self, index: jax.Array) -> jax.Array:
        """Rows [T, D] of `index` int32 [T]."""
        return jnp.take(self.weight[...], index, axis=0, mode="clip")


class EncoderLayer(nnx.Module):
    """`x = norm(x + attention(x))`, then `x = norm(x + mlp(x))`."""

    def __init__(self, config: EncoderConfig, options: ForwardOptions, dtype: jnp.dtype) -> None:
        size = config.hidden_size
        norm = partial(LayerNorm, size, config.layer_norm_eps, dtype=dtype, options=options)
        linear = partial(Linear, bias=True, dtype=dtype, axes=(None, None), options=options)
        self.attention = SelfAttention(config, options, dtype)
        self.attention_norm = norm()
        self.up = linear(size, config.intermediate_size)
        self.down = linear(config.intermediate_size, size)
        self.mlp_norm = norm()
        self.activation = config.activation

    def __call__(self, x: jax.Array, segments: Segments) -> jax.Array:
        """Map [T, D] to [T, D]."""
        x = self.attention_norm(x + self.attention(x, segments))
        return self.mlp_norm(x + self.down(ACTIVATIONS[self.activation](self.up(x))))


class SelfAttention(nnx.Module):
    """Attention of every token to its whole text."""

    def __init__(self, config: EncoderConfig, options: ForwardOptions, dtype: jnp.dtype) -> None:
        size = config.hidden_size
        linear = partial(Linear, size, size, bias=True, dtype=dtype, axes=(None, None), options=options)
        self.query, self.key, self.value, self.output = linear(), linear(), linear(), linear()
        self.head_size = config.head_size

    def __call__(self, x: jax.Array, segments: Segments) -> jax.Array:
        """Map [T, D] to [T, D]."""
        query, key, value = (
            project(x).reshape(len(x), -1, self.head_size) for project in (self.query, self.key, self.value)
        )
        attended = segment_attention(query, key, value, segments, scale=self.head_size**-0.5)
        return self.output(attended.reshape(x.shape))
