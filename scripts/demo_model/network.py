"""A Llama decoder in plain JAX, small enough to read at a glance, and the shapes it is trained with.

It follows Hugging Face's `LlamaForCausalLM` (rotate-half rotary embeddings, grouped-query attention, SwiGLU, RMSNorm,
tied embeddings), so that the exported weights mean the same there.  The engine's own model code is not used: this one
must stay an independent witness of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import jax
import jax.numpy as jnp

Params: TypeAlias = dict[str, jax.Array]
"""Weights under their Hugging Face names; a matrix is stored as (in, out), the transpose of the exported one."""


@dataclass(frozen=True)
class Shape:
    """The architecture: the fields of a Llama `config.json` which are not constants here."""

    vocab: int = 1536
    hidden: int = 128
    layers: int = 4
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 32
    feed_forward: int = 384
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    max_positions: int = 2048


def layer_name(layer: int, part: str) -> str:
    """The Hugging Face name of one weight of one decoder layer."""
    return f"model.layers.{layer}.{part}.weight"


EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"


def initial_params(shape: Shape, seed: int, embedding: jax.Array) -> Params:
    """Fresh weights around a given embedding (vocab, hidden).

    They are normal with a deviation of 1/sqrt(inputs), smaller where a layer writes to the residual stream.
    """
    query, key_value = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    residual = (2 * shape.layers) ** -0.5
    matrices = {
        "self_attn.q_proj": (shape.hidden, query, 1.0),
        "self_attn.k_proj": (shape.hidden, key_value, 1.0),
        "self_attn.v_proj": (shape.hidden, key_value, 1.0),
        "self_attn.o_proj": (query, shape.hidden, residual),
        "mlp.gate_proj": (shape.hidden, shape.feed_forward, 1.0),
        "mlp.up_proj": (shape.hidden, shape.feed_forward, 1.0),
        "mlp.down_proj": (shape.feed_forward, shape.hidden, residual),
    }
    key = jax.random.key(seed)
    params: Params = {
        EMBEDDING: embedding,
        FINAL_NORM: jnp.ones(shape.hidden),
    }
    count = 0
    for layer in range(shape.layers):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            params[layer_name(layer, norm)] = jnp.ones(shape.hidden)
        for part, (rows, columns, scale) in matrices.items():
            count += 1
            noise = jax.random.normal(jax.random.fold_in(key, count), (rows, columns))
            params[layer_name(layer, part)] = noise * (scale * rows**-0.5)
    return params


def norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """RMSNorm of x (..., hidden)."""
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + eps) * weight


def rotate(x: jax.Array, theta: float, ahead: int = 0) -> jax.Array:
    """Rotary embedding of x (batch, length, heads, head_dim) at positions so far `ahead` of the index in the row."""
    half = x.shape[-1] // 2
    frequency = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle = (ahead + jnp.arange(x.shape[1], dtype=jnp.float32))[:, None] * frequency
    cos, sin = jnp.cos(angle)[:, None, :], jnp.sin(angle)[:, None, :]
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _attention(params: Params, shape: Shape, layer: int, x: jax.Array, bias: jax.Array) -> jax.Array:
    """Causal attention in blocks of queries, each against the keys up to its end.

    On a CPU the exponentials of the scores dominate a training step; the blocks skip the half above the diagonal, and
    dividing after the product with the values saves a pass over the scores.
    """
    batch, length, _ = x.shape
    groups = shape.heads // shape.kv_heads

    def heads(part: str, count: int) -> jax.Array:
        return (x @ params[layer_name(layer, f"self_attn.{part}")]).reshape(batch, length, count, shape.head_dim)

    query = rotate(heads("q_proj", shape.heads), shape.rope_theta) * shape.head_dim**-0.5
    query = query.reshape(batch, length, shape.kv_heads, groups, shape.head_dim).transpose(0, 2, 3, 1, 4)
    key = rotate(heads("k_proj", shape.kv_heads), shape.rope_theta).transpose(0, 2, 1, 3)
    value = heads("v_proj", shape.kv_heads).transpose(0, 2, 1, 3)
    mixed = []
    for start in range(0, length, block := max(32, length // 8)):
        end = min(start + block, length)
        rows = groups * (end - start)
        flat = query[:, :, :, start:end].reshape(batch, shape.kv_heads, rows, shape.head_dim)
        scores = jnp.matmul(flat, key[:, :, :end].swapaxes(-1, -2))
        scores = scores.reshape(batch, shape.kv_heads, groups, end - start, end) + bias[:, None, None, start:end, :end]
        weights = jnp.exp(scores - jax.lax.stop_gradient(scores.max(axis=-1, keepdims=True)))
        total = weights.sum(axis=-1, keepdims=True)
        product = jnp.matmul(weights.reshape(batch, shape.kv_heads, rows, end), value[:, :, :end])
        mixed.append(product.reshape(batch, shape.kv_heads, groups, end - start, shape.head_dim) / total)
    joined = jnp.concatenate(mixed, axis=3).transpose(0, 3, 1, 2, 4).reshape(batch, length, -1)
    return joined @ params[layer_name(layer, "self_attn.o_proj")]


def states_between(params: Params, shape: Shape, tokens: jax.Array, documents: jax.Array) -> list[jax.Array]:
    """What each layer reads, and what the last one leaves: layers + 1 arrays (batch, length, hidden) in float32.

    tokens: (batch, length) int32; documents: (batch, length) int32, the number of the document each token belongs to.
    A token attends to earlier tokens of its own document only: rotary positions are relative, so a document in the
    middle of a row sees what it would see alone at its start.
    """
    return states_of(params, shape, params[EMBEDDING][tokens], documents)


def states_of(params: Params, shape: Shape, x: jax.Array, documents: jax.Array) -> list[jax.Array]:
    """The same of embeddings (batch, length, hidden)."""
    bias = attention_bias(documents)
    states = [x]
    for layer in range(shape.layers):
        normed = norm(x, params[layer_name(layer, "input_layernorm")], shape.norm_eps)
        x = x + _attention(params, shape, layer, normed, bias)
        normed = norm(x, params[layer_name(layer, "post_attention_layernorm")], shape.norm_eps)
        gate = jax.nn.silu(normed @ params[layer_name(layer, "mlp.gate_proj")])
        up = normed @ params[layer_name(layer, "mlp.up_proj")]
        x = x + (gate * up) @ params[layer_name(layer, "mlp.down_proj")]
        states.append(x)
    return states


def attention_bias(documents: jax.Array) -> jax.Array:
    """What to add to scores (batch, length, length), so that each token sees what stands before it in its document."""
    same = documents[:, :, None] == documents[:, None, :]
    causal = jnp.tril(jnp.ones((documents.shape[1], documents.shape[1]), bool))
    return jnp.where(same & causal, 0.0, -1e9)


def hidden_states(params: Params, shape: Shape, tokens: jax.Array, documents: jax.Array) -> jax.Array:
    """The last, normed hidden states (batch, length, hidden) in float32; see `states_between` for the arguments."""
    return norm(states_between(params, shape, tokens, documents)[-1], params[FINAL_NORM], shape.norm_eps)


def logits(params: Params, shape: Shape, tokens: jax.Array, documents: jax.Array) -> jax.Array:
    """Next-token logits (batch, length, vocab) in float32; see `states_between` for the arguments."""
    return hidden_states(params, shape, tokens, documents) @ params[EMBEDDING].T


def token_losses(params: Params, shape: Shape, tokens: jax.Array, documents: jax.Array) -> jax.Array:
    """Cross-entropy (batch, length - 1) in nats of each token after the first, given those before it."""
    scores = logits(params, shape, tokens, documents)[:, :-1]
    chosen = jnp.take_along_axis(scores, tokens[:, 1:, None], axis=-1)[..., 0]
    return jax.nn.logsumexp(scores, axis=-1) - chosen
