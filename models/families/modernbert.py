"""ModernBERT (arXiv 2412.13663): an encoder with rotary positions, norms before, gates, and windows on most layers."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.attention_plan import AttentionPlan, RopeConfig
from jaxllm.models.batch import PackedSequences
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.errors import ModelError
from jaxllm.models.families.family import Family, HeadPlan
from jaxllm.models.forward_context import ForwardContext
from jaxllm.models.layers.activation import ACTIVATIONS
from jaxllm.models.layers.adapter_slots import add_adapter_slots
from jaxllm.models.layers.embedding import Embedding
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.norm import make_norm
from jaxllm.models.layers.rope import Rotation, rotate, rotation
from jaxllm.models.mlp_plan import MLPPlan
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.options import ForwardOptions
from jaxllm.models.plan import LayerPlan
from jaxllm.models.stack import ropes_of
from jaxllm.pallas_kernels.segment_attention.api import segment_attention
from jaxllm.pallas_kernels.segment_attention.segments import Segments


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """ModernBERT's configuration. Raises `ModelError` for options that released models do not use."""
    # What is only for predicting masked tokens, or for training.
    file.ignore(
        "decoder_bias",
        "tie_word_embeddings",
        "sparse_*",
        "repad_*",
        "reference_compile",
        "deterministic_*",
        "layer_norm_eps",
    )
    for name, only in (("norm_bias", False), ("classifier_bias", False)):
        if file.boolean(name, only) is not only:
            raise ModelError(f"{file.source}: {name}={not only} is not supported")
    activations = {file.text(name, "gelu") for name in ("hidden_activation", "classifier_activation")}
    if activations != {"gelu"}:
        raise ModelError(f"{file.source}: only the activation gelu is supported, not {sorted(activations)}")
    size, heads = file.integer("hidden_size"), file.integer("num_attention_heads")
    positions = file.integer("max_position_embeddings", 8192)
    norm = NormPlan(kind="layer", eps=file.number("norm_eps", 1e-5))
    return ModelConfig(
        architecture=architecture,
        vocab_size=file.integer("vocab_size"),
        hidden_size=size,
        num_heads=heads,
        num_kv_heads=heads,
        head_size=size // heads,
        intermediate_size=file.integer("intermediate_size"),
        layers=_layers(file, norm, positions),
        norm=norm,
        max_position_embeddings=positions,
    )


def _layers(file: ConfigFile, norm: NormPlan, positions: int) -> tuple[LayerPlan, ...]:
    """Layers that see the whole text, and those where a token sees others up to a window away, on both sides.

    The first one has no norm before its attention.
    """
    bias = file.boolean("attention_bias", False)
    half = file.integer("local_attention", 128) // 2
    whole, local = (RopeConfig(theta=theta, trained_length=positions) for theta in _thetas(file))
    plan = LayerPlan(
        attention=AttentionPlan(rope=whole, qkv_bias=bias, output_bias=bias),
        mlp=MLPPlan(activation="gelu", bias=file.boolean("mlp_bias", False)),
        attention_norm=norm,
        mlp_norm=norm,
    )
    is_local = _is_local(file, file.integer("num_hidden_layers"))
    plans = [plan.attending(window=half, rope=local) if local_layer else plan for local_layer in is_local]
    return (replace(plans[0], attention_norm=None), *plans[1:])


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
        self.config, self.max_model_len = config, options.max_model_len
        norm = partial(make_norm, config.norm, config.hidden_size, dtype=dtype, options=options)
        self.embedding = Embedding(config, options, dtype=dtype)
        self.embedding_norm = norm()
        self.layers = nnx.List([ModernBertLayer(config, plan, options, dtype) for plan in config.layers])
        self.norm = norm()
        if options.adapters is not None:
            add_adapter_slots(self, options.adapters)

    def __call__(self, texts: PackedSequences) -> jax.Array:
        """Hidden states [T, D] after the final norm."""
        config, positions = self.config, texts.segments.positions
        rotations = {
            rope: rotation(rope, config.head_size, self.max_model_len, positions) for rope in ropes_of(config.layers)
        }
        x = self.embedding_norm(self.embedding(texts.token_ids))
        for layer, plan in zip(self.layers, config.layers, strict=True):
            assert plan.attention.rope is not None
            x = layer(x, rotations[plan.attention.rope], texts.segments, texts.context)
        return self.norm(x)


class ModernBertLayer(nnx.Module):
    """`x + attention(norm(x))`, then `x + mlp(norm(x))`; the first layer has no norm before its attention."""

    def __init__(self, config: ModelConfig, plan: LayerPlan, options: ForwardOptions, dtype: jnp.dtype) -> None:
        size, wide, attention = config.hidden_size, config.intermediate_size, plan.attention
        linear: Any = partial(Linear, dtype=dtype, axes=(None, None), options=options)
        assert isinstance(attention, AttentionPlan)
        self.head_size, self.window = config.head_size, attention.window or None
        self.attention_norm = make_norm(plan.attention_norm, size, dtype=dtype, options=options)
        self.query_key_value = linear(size, 3 * size, bias=attention.qkv_bias)
        self.output = linear(size, size, bias=attention.output_bias)
        self.mlp_norm = make_norm(plan.mlp_norm, size, dtype=dtype, options=options)
        self.up_and_gate = linear(size, 2 * wide, bias=plan.mlp.bias)
        self.down = linear(wide, size, bias=plan.mlp.bias)

    def __call__(self, x: jax.Array, by: Rotation, segments: Segments, context: ForwardContext) -> jax.Array:
        """Map [T, D] to [T, D]."""
        heads = self.query_key_value(self.attention_norm(x), context).reshape(len(x), 3, -1, self.head_size)
        query, key = rotate(heads[:, 0], by), rotate(heads[:, 1], by)
        scale, window = self.head_size**-0.5, self.window
        attended = segment_attention(query, key, heads[:, 2], segments, scale=scale, window=window)
        x = x + self.output(attended.reshape(x.shape), context)
        up, gate = jnp.split(self.up_and_gate(self.mlp_norm(x), context), 2, axis=-1)
        return x + self.down(ACTIVATIONS["gelu"](up) * gate, context)


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
