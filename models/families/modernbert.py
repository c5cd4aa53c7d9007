"""ModernBERT (arXiv 2412.13663): an encoder with rotary positions, norms before, gates, and windows on most layers."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.batch import PackedSequences
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig, RopeConfig
from jaxllm.models.errors import ModelError
from jaxllm.models.families.family import Family, HeadPlan
from jaxllm.models.layers.activation import ACTIVATIONS
from jaxllm.models.layers.embedding import Embedding
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.norm import LayerNorm
from jaxllm.models.layers.rope import Rotation, rotate, rotation
from jaxllm.models.options import ForwardOptions
from jaxllm.pallas_kernels.segment_attention.api import segment_attention
from jaxllm.pallas_kernels.segment_attention.segments import Segments


@dataclass(frozen=True, kw_only=True)
class ModernBertConfig(ModelConfig):
    """What ModernBERT adds: `rope` is that of layers which see the whole text, `local_rope` of those with a window.

    A token sees others up to `windows` places away, on both sides.
    """

    layer_norm_eps: float = 1e-5
    local_rope: RopeConfig


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """ModernBERT's configuration. Raises `ModelError` for options that released models do not use."""
    for name, only in (("norm_bias", False), ("classifier_bias", False)):
        if file.boolean(name, only) is not only:
            raise ModelError(f"{file.source}: {name}={not only} is not supported")
    activations = {file.text(name, "gelu") for name in ("hidden_activation", "classifier_activation")}
    if activations != {"gelu"}:
        raise ModelError(f"{file.source}: only the activation gelu is supported, not {sorted(activations)}")
    size, heads = file.integer("hidden_size"), file.integer("num_attention_heads")
    layers = file.integer("num_hidden_layers")
    half = file.integer("local_attention", 128) // 2
    positions = file.integer("max_position_embeddings", 8192)
    ropes = _thetas(file)
    return ModernBertConfig(
        architecture=architecture,
        vocab_size=file.integer("vocab_size"),
        hidden_size=size,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=heads,
        head_size=size // heads,
        intermediate_size=file.integer("intermediate_size"),
        windows=tuple(half if local else 0 for local in _is_local(file, layers)),
        rope=RopeConfig(theta=ropes[0], trained_length=positions),
        local_rope=RopeConfig(theta=ropes[1], trained_length=positions),
        activation="gelu",
        qkv_bias=file.boolean("attention_bias", False),
        output_bias=file.boolean("attention_bias", False),
        mlp_bias=file.boolean("mlp_bias", False),
        max_position_embeddings=positions,
        layer_norm_eps=file.number("norm_eps", 1e-5),
    )


def _thetas(file: ConfigFile) -> tuple[float, float]:
    """Bases of the rotary embedding, of whole texts and of windows."""
    by_kind = file.section("rope_parameters")
    if by_kind is None:
        return file.number("global_rope_theta", 160000.0), file.number("local_rope_theta", 10000.0)
    found = []
    for kind in ("full_attention", "sliding_attention"):
        rope = by_kind.section(kind)
        if rope is None or rope.text("rope_type", "default") != "default":
            raise ModelError(f"{by_kind.source}: {kind} needs a rope_type of 'default'")
        found.append(rope.number("rope_theta"))
    return found[0], found[1]


def _is_local(file: ConfigFile, layers: int) -> list[bool]:
    """For each layer, whether it has a window."""
    if file.has("layer_types"):
        kinds = file.texts("layer_types")
        if len(kinds) != layers or set(kinds) - {"full_attention", "sliding_attention"}:
            raise file.wrong("layer_types", f"{layers} times 'full_attention' or 'sliding_attention'")
        return [kind == "sliding_attention" for kind in kinds]
    every = file.integer("global_attn_every_n_layers", 3)
    return [layer % every != 0 for layer in range(layers)]


class ModernBert(nnx.Module):
    """Embedding and norm, layers, norm."""

    def __init__(self, config: ModelConfig, options: ForwardOptions, dtype: jnp.dtype) -> None:
        assert isinstance(config, ModernBertConfig)
        self.config, self.max_model_len = config, options.max_model_len
        norm = partial(
            LayerNorm, config.hidden_size, config.layer_norm_eps, dtype=dtype, options=options, use_bias=False
        )
        self.embedding = Embedding(config, options, dtype=dtype)
        self.embedding_norm = norm()
        self.layers = nnx.List([ModernBertLayer(config, options, layer, dtype) for layer in range(config.num_layers)])
        self.norm = norm()

    def __call__(self, texts: PackedSequences) -> jax.Array:
        """Hidden states [T, D] after the final norm."""
        config = self.config
        whole, local = (
            rotation(rope, config.head_size, self.max_model_len, texts.segments.positions)
            for rope in (config.rope, config.local_rope)
        )
        x = self.embedding_norm(self.embedding(texts.token_ids))
        for layer, window in zip(self.layers, config.windows, strict=True):
            x = layer(x, local if window else whole, texts.segments, window or None)
        return self.norm(x)


class ModernBertLayer(nnx.Module):
    """`x + attention(norm(x))`, then `x + mlp(norm(x))`; the first layer has no norm before its attention."""

    def __init__(self, config: ModernBertConfig, options: ForwardOptions, layer: int, dtype: jnp.dtype) -> None:
        size, wide = config.hidden_size, config.intermediate_size
        linear: Any = partial(Linear, dtype=dtype, axes=(None, None), options=options)
        norm = partial(LayerNorm, size, config.layer_norm_eps, dtype=dtype, options=options, use_bias=False)
        self.head_size = config.head_size
        self.attention_norm = norm() if layer else None
        self.query_key_value = linear(size, 3 * size, bias=config.qkv_bias)
        self.output = linear(size, size, bias=config.output_bias)
        self.mlp_norm = norm()
        self.up_and_gate = linear(size, 2 * wide, bias=config.mlp_bias)
        self.down = linear(wide, size, bias=config.mlp_bias)

    def __call__(self, x: jax.Array, by: Rotation, segments: Segments, window: int | None) -> jax.Array:
        """Map [T, D] to [T, D]."""
        normed = x if self.attention_norm is None else self.attention_norm(x)
        heads = self.query_key_value(normed).reshape(len(x), 3, -1, self.head_size)
        query, key = rotate(heads[:, 0], by), rotate(heads[:, 1], by)
        attended = segment_attention(query, key, heads[:, 2], segments, scale=self.head_size**-0.5, window=window)
        x = x + self.output(attended.reshape(x.shape))
        up, gate = jnp.split(self.up_and_gate(self.mlp_norm(x)), 2, axis=-1)
        return x + self.down(ACTIVATIONS["gelu"](up) * gate)


_NAMES = {
    "embedding": "model.embeddings.tok_embeddings",
    "embedding_norm": "model.embeddings.norm",
    "norm": "model.final_norm",
    "layers.*.attention_norm": "model.layers.*.attn_norm",
    "layers.*.query_key_value": "model.layers.*.attn.Wqkv",
    "layers.*.output": "model.layers.*.attn.Wo",
    "layers.*.mlp_norm": "model.layers.*.mlp_norm",
    "layers.*.up_and_gate": "model.layers.*.mlp.Wi",
    "layers.*.down": "model.layers.*.mlp.Wo",
}

FAMILY = Family(
    read_config,
    weight_names=_NAMES,
    use="embed",
    make_encoder=ModernBert,
    head=HeadPlan(dense=True, dense_bias=False, activation="gelu", norm=True, bias=True),
    head_names={"dense": "head.dense", "norm": "head.norm", "out": "classifier"},
    other_heads=("decoder.", "head."),
    prefix="model.",
)

CLASSIFIER = replace(FAMILY, use="classify")
