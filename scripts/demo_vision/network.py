"""A small Idefics 3 in plain JAX: a vision transformer whose rows stand in place of tokens of the demo model.

It follows Hugging Face's `Idefics3ForConditionalGeneration`, so that the exported weights mean the same there. Matrices
are (in, out), the transposes of the exported ones, as in `scripts.demo_model.network`.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from scripts.demo_model.network import EMBEDDING, FINAL_NORM, Params, Shape, norm, states_of

VISION = "model.vision_model"
PATCHES = f"{VISION}.embeddings.patch_embedding"
POSITIONS = f"{VISION}.embeddings.position_embedding.weight"
PROJECTION = "model.connector.modality_projection.proj.weight"


@dataclass(frozen=True)
class VisionShape:
    """The vision transformer: the fields of a `vision_config`, and of how many patches each way a row is made."""

    image: int = 96
    patch: int = 12
    hidden: int = 96
    layers: int = 4
    heads: int = 4
    feed_forward: int = 192
    merge: int = 2
    norm_eps: float = 1e-6

    @property
    def side(self) -> int:
        """Patches each way."""
        return self.image // self.patch

    @property
    def rows(self) -> int:
        """Rows of a picture."""
        return (self.side // self.merge) ** 2


def is_of_vision(name: str) -> bool:
    """Whether a weight is of the vision transformer or of what makes rows of its hidden states."""
    return name.startswith((VISION, "model.connector."))


def layer_name(layer: int, part: str) -> str:
    """The Hugging Face name of a part of one layer of the vision transformer."""
    return f"{VISION}.encoder.layers.{layer}.{part}"


def initial_vision(vision: VisionShape, hidden: int, seed: int) -> Params:
    """Fresh weights; `hidden` is the size of the language model."""
    size, inner = vision.hidden, vision.feed_forward
    residual = (2 * vision.layers) ** -0.5
    matrices = {
        PATCHES: (vision.patch**2 * 3, size, 1.0),
        PROJECTION.removesuffix(".weight"): (size * vision.merge**2, hidden, 1.0),
    }
    norms = [f"{VISION}.post_layernorm"]
    for layer in range(vision.layers):
        for part in ("q_proj", "k_proj", "v_proj"):
            matrices[layer_name(layer, f"self_attn.{part}")] = (size, size, 1.0)
        matrices[layer_name(layer, "self_attn.out_proj")] = (size, size, residual)
        matrices[layer_name(layer, "mlp.fc1")] = (size, inner, 1.0)
        matrices[layer_name(layer, "mlp.fc2")] = (inner, size, residual)
        norms += [layer_name(layer, "layer_norm1"), layer_name(layer, "layer_norm2")]
    key = jax.random.key(seed)
    params: Params = {POSITIONS: 0.02 * jax.random.normal(jax.random.fold_in(key, 0), (vision.side**2, size))}
    for count, (name, (rows, columns, scale)) in enumerate(matrices.items(), 1):
        params[f"{name}.weight"] = jax.random.normal(jax.random.fold_in(key, count), (rows, columns)) * (
            scale * rows**-0.5
        )
        if f"{name}.weight" != PROJECTION:
            params[f"{name}.bias"] = jnp.zeros(columns)
    for name in norms:
        params[f"{name}.weight"], params[f"{name}.bias"] = jnp.ones(size), jnp.zeros(size)
    return params


def _linear(params: Params, name: str, x: jax.Array) -> jax.Array:
    return x @ params[f"{name}.weight"] + params[f"{name}.bias"]


def _norm(params: Params, name: str, x: jax.Array, eps: float) -> jax.Array:
    mean, variance = x.mean(axis=-1, keepdims=True), x.var(axis=-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + eps) * params[f"{name}.weight"] + params[f"{name}.bias"]


def _attention(params: Params, vision: VisionShape, layer: int, x: jax.Array) -> jax.Array:
    query, key, value = (
        _linear(params, layer_name(layer, f"self_attn.{part}"), x).reshape(*x.shape[:2], vision.heads, -1)
        for part in ("q_proj", "k_proj", "v_proj")
    )
    scores = jnp.einsum("bqnh,bknh->bnqk", query, key) * query.shape[-1] ** -0.5
    mixed = jnp.einsum("bnqk,bknh->bqnh", jax.nn.softmax(scores), value).reshape(x.shape)
    return _linear(params, layer_name(layer, "self_attn.out_proj"), mixed)


def seen(params: Params, vision: VisionShape, pictures: jax.Array) -> jax.Array:
    """Hidden states (batch, side, side, hidden) of the patches of pictures uint8 (batch, image, image, 3)."""
    count, side, patch = len(pictures), vision.side, vision.patch
    numbers = pictures.astype(jnp.float32) / 127.5 - 1.0
    cut = numbers.reshape(count, side, patch, side, patch, 3).transpose(0, 1, 3, 2, 4, 5)
    x = _linear(params, PATCHES, cut.reshape(count, side**2, -1)) + params[POSITIONS]
    for layer in range(vision.layers):
        x = x + _attention(params, vision, layer, _norm(params, layer_name(layer, "layer_norm1"), x, vision.norm_eps))
        inner = _linear(
            params, layer_name(layer, "mlp.fc1"), _norm(params, layer_name(layer, "layer_norm2"), x, vision.norm_eps)
        )
        x = x + _linear(params, layer_name(layer, "mlp.fc2"), jax.nn.gelu(inner, approximate=True))
    x = _norm(params, f"{VISION}.post_layernorm", x, vision.norm_eps)
    return x.reshape(count, side, side, -1)


def rows_of(params: Params, vision: VisionShape, pictures: jax.Array) -> jax.Array:
    """Rows (batch, rows, hidden of the language model) of pictures uint8 (batch, image, image, 3)."""
    half, merge = vision.side // vision.merge, vision.merge
    squares = seen(params, vision, pictures).reshape(len(pictures), half, merge, half, merge, -1)
    return squares.transpose(0, 1, 3, 2, 4, 5).reshape(len(pictures), vision.rows, -1) @ params[PROJECTION]


def logits(params: Params, shape: Shape, tokens: jax.Array, rows: jax.Array, first_row: int) -> jax.Array:
    """Next-token logits (batch, length, vocab); the rows of each picture stand from token `first_row` on."""
    x = params[EMBEDDING][tokens]
    x = x.at[:, first_row : first_row + rows.shape[1]].set(rows)
    hidden = norm(states_of(params, shape, x, jnp.zeros_like(tokens))[-1], params[FINAL_NORM], shape.norm_eps)
    return hidden @ params[EMBEDDING].T
