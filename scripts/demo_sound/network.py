"""A small Whisper in plain JAX.

It follows Hugging Face's `WhisperForConditionalGeneration`, so that the exported weights mean the same there. Matrices
are (in, out), and convolutions (frames * in, out): the exported ones are turned around.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from scripts.demo_model.network import Params

EMBEDDING = "model.decoder.embed_tokens.weight"
POSITIONS = "model.decoder.embed_positions.weight"
TABLES = (EMBEDDING, POSITIONS)
"""Not multiplied with, but looked up; what the encoder has of these is the same for all models, and not trained."""
_NORM_EPS = 1e-5


@dataclass(frozen=True)
class Shape:
    """The fields of a `config.json`."""

    vocab: int
    first_time: int
    """The token of the time 0."""
    bins: int = 80
    positions: int = 150
    """Of the encoder: half as many as frames."""
    length: int = 32
    """Tokens of a window, at most."""
    hidden: int = 64
    layers: int = 2
    """Of the encoder, and of the decoder."""
    heads: int = 2
    feed_forward: int = 256


def sinusoids(count: int, hidden: int) -> jax.Array:
    """Positions of the encoder, float32 (count, hidden): sines, then cosines."""
    half = hidden // 2
    angles = np.arange(count)[:, None] * np.exp(-np.log(10000) / (half - 1) * np.arange(half))
    return jnp.asarray(np.concatenate([np.sin(angles), np.cos(angles)], axis=1), jnp.float32)


def initial_params(shape: Shape, seed: int) -> Params:
    """Fresh weights; timestamps begin as the positions that they tell."""
    size, inner, residual = shape.hidden, shape.feed_forward, (2 * shape.layers) ** -0.5
    matrices = {"model.encoder.conv1": (3 * shape.bins, size, 1.0), "model.encoder.conv2": (3 * size, size, 1.0)}
    norms = ["model.encoder.layer_norm", "model.decoder.layer_norm"]
    for side, blocks in (("encoder", ("self_attn",)), ("decoder", ("self_attn", "encoder_attn"))):
        for layer in range(shape.layers):
            name = f"model.{side}.layers.{layer}"
            for block in blocks:
                for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    scale = residual if part == "out_proj" else 1.0
                    matrices[f"{name}.{block}.{part}"] = (size, size, scale)
                norms.append(f"{name}.{block}_layer_norm")
            matrices[f"{name}.fc1"], matrices[f"{name}.fc2"] = (size, inner, 1.0), (inner, size, residual)
            norms.append(f"{name}.final_layer_norm")
    key = jax.random.key(seed)
    words = 0.1 * jax.random.normal(jax.random.fold_in(key, 0), (shape.vocab, size))
    times = sinusoids(shape.positions + 1, size)
    params: Params = {
        EMBEDDING: words.at[shape.first_time :].add(0.1 * times),
        POSITIONS: 0.1 * jax.random.normal(jax.random.fold_in(key, 1), (shape.length, size)),
    }
    for count, (name, (rows, columns, scale)) in enumerate(matrices.items(), 2):
        noise = jax.random.normal(jax.random.fold_in(key, count), (rows, columns))
        params[f"{name}.weight"] = noise * (scale * rows**-0.5)
        if not name.endswith("k_proj"):
            params[f"{name}.bias"] = jnp.zeros(columns)
    for name in norms:
        params[f"{name}.weight"], params[f"{name}.bias"] = jnp.ones(size), jnp.zeros(size)
    return params


def _linear(params: Params, name: str, x: jax.Array) -> jax.Array:
    found = x @ params[f"{name}.weight"]
    return found + params[f"{name}.bias"] if f"{name}.bias" in params else found


def _norm(params: Params, name: str, x: jax.Array) -> jax.Array:
    mean, variance = x.mean(axis=-1, keepdims=True), x.var(axis=-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + _NORM_EPS) * params[f"{name}.weight"] + params[f"{name}.bias"]


def _attention(
    params: Params, shape: Shape, name: str, x: jax.Array, seen: jax.Array, mask: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """What x (batch, queries, hidden) takes of what is seen (batch, keys, hidden), and how much of each of them."""
    query, key, value = (
        _linear(params, f"{name}.{part}", each).reshape(*each.shape[:2], shape.heads, -1)
        for part, each in (("q_proj", x), ("k_proj", seen), ("v_proj", seen))
    )
    scores = jnp.einsum("bqnh,bknh->bnqk", query, key) * query.shape[-1] ** -0.5
    weights = jax.nn.softmax(scores if mask is None else jnp.where(mask, scores, -1e9))
    mixed = jnp.einsum("bnqk,bknh->bqnh", weights, value).reshape(x.shape)
    return _linear(params, f"{name}.out_proj", mixed), weights


def _feed_forward(params: Params, name: str, x: jax.Array) -> jax.Array:
    inner = _linear(params, f"{name}.fc1", _norm(params, f"{name}.final_layer_norm", x))
    return x + _linear(params, f"{name}.fc2", jax.nn.gelu(inner, approximate=False))


def _convolution(params: Params, name: str, x: jax.Array, stride: int) -> jax.Array:
    """Of three frames, with a frame of zeros at each end of x (batch, frames, in)."""
    padded = jnp.pad(x, ((0, 0), (1, 1), (0, 0)))
    count = x.shape[1] // stride
    taken = [padded[:, first : first + (count - 1) * stride + 1 : stride] for first in range(3)]
    return jax.nn.gelu(_linear(params, name, jnp.concatenate(taken, axis=-1)), approximate=False)


def encoded(params: Params, shape: Shape, features: jax.Array) -> jax.Array:
    """States (batch, positions, hidden) of features (batch, bins, frames)."""
    x = _convolution(params, "model.encoder.conv1", features.swapaxes(1, 2), 1)
    x = _convolution(params, "model.encoder.conv2", x, 2) + sinusoids(shape.positions, shape.hidden)
    for layer in range(shape.layers):
        name = f"model.encoder.layers.{layer}"
        normed = _norm(params, f"{name}.self_attn_layer_norm", x)
        x = _feed_forward(params, name, x + _attention(params, shape, f"{name}.self_attn", normed, normed)[0])
    return _norm(params, "model.encoder.layer_norm", x)


def logits(params: Params, shape: Shape, states: jax.Array, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Next-token logits (batch, length, vocab), and how much each token hears of each position in the last layer."""
    length = tokens.shape[1]
    x, weights = params[EMBEDDING][tokens] + params[POSITIONS][:length], jnp.zeros(())
    causal = jnp.tril(jnp.ones((length, length), bool))
    for layer in range(shape.layers):
        name = f"model.decoder.layers.{layer}"
        normed = _norm(params, f"{name}.self_attn_layer_norm", x)
        x = x + _attention(params, shape, f"{name}.self_attn", normed, normed, causal)[0]
        normed = _norm(params, f"{name}.encoder_attn_layer_norm", x)
        heard, weights = _attention(params, shape, f"{name}.encoder_attn", normed, states)
        x = _feed_forward(params, name, x + heard)
    return _norm(params, "model.decoder.layer_norm", x) @ params[EMBEDDING].T, weights
