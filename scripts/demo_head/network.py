"""An EAGLE-3 head (arXiv 2503.01840) of the demo model in plain JAX, and its training loss.

At a token the head joins hidden states of the model there with the embedding of the token after it, and guesses the
token after that. Its output takes the place of the model's hidden states for a further guess. The engine's own code is
not used: this must stay an independent witness of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from scripts.demo_model import network
from scripts.demo_model.network import EMBEDDING, FINAL_NORM, Params, norm, rotate

HEAD = "lm_head.weight"
NORM = "norm.weight"
JOINT = "fc.weight"


@dataclass(frozen=True)
class HeadShape:
    """What a head's `config.json` says beyond the model's: hidden size, vocabulary and norms are the model's."""

    taps: tuple[int, ...] = (1, 2, 3)
    """Layers of the model whose inputs the head reads."""
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    feed_forward: int = 384


def part(name: str) -> str:
    """The name of one weight of the head's layer in checkpoints of EAGLE-3's authors."""
    return f"midlayer.{name}.weight"


def initial_params(model: Params, shape: network.Shape, own: HeadShape, seed: int) -> Params:
    """Fresh weights; the output layer begins as the model's own."""
    query, key_value = own.heads * own.head_dim, own.kv_heads * own.head_dim
    matrices = {
        JOINT: (len(own.taps) * shape.hidden, shape.hidden, 1.0),
        part("self_attn.q_proj"): (2 * shape.hidden, query, 1.0),
        part("self_attn.k_proj"): (2 * shape.hidden, key_value, 1.0),
        part("self_attn.v_proj"): (2 * shape.hidden, key_value, 1.0),
        part("self_attn.o_proj"): (query, shape.hidden, 0.7),
        part("mlp.gate_proj"): (shape.hidden, own.feed_forward, 1.0),
        part("mlp.up_proj"): (shape.hidden, own.feed_forward, 1.0),
        part("mlp.down_proj"): (own.feed_forward, shape.hidden, 0.7),
    }
    params: Params = {HEAD: jnp.copy(model[EMBEDDING].T), NORM: jnp.copy(model[FINAL_NORM])}
    for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        params[part(name)] = jnp.ones(shape.hidden)
    key = jax.random.key(seed)
    for number, (name, (rows, columns, scale)) in enumerate(matrices.items()):
        noise = jax.random.normal(jax.random.fold_in(key, number), (rows, columns))
        params[name] = noise * (scale * rows**-0.5)
    return params


class Seen(NamedTuple):
    """What the head has of the model at all tokens of a batch."""

    embedded: jax.Array
    """Embeddings of the tokens themselves (batch, length, hidden)."""
    joined: jax.Array
    """The tapped hidden states side by side (batch, length, taps * hidden)."""
    bias: jax.Array
    """See `network.attention_bias`."""
    likely: jax.Array
    """The model's probabilities of each token's next (batch, length, vocab)."""


def see(model: Params, shape: network.Shape, own: HeadShape, tokens: jax.Array, documents: jax.Array) -> Seen:
    """Runs the model; see `network.states_between` for the arguments."""
    states = network.states_between(model, shape, tokens, documents)
    last = norm(states[-1], model[FINAL_NORM], shape.norm_eps)
    likely = jax.nn.softmax(last @ model[EMBEDDING].T, axis=-1)
    joined = jnp.concatenate([states[tap] for tap in own.taps], axis=-1)
    return Seen(model[EMBEDDING][tokens], joined, network.attention_bias(documents), likely)


def ahead(x: jax.Array, by: int) -> jax.Array:
    """For each place of a row what stands `by` places further on; beyond the end of the row it is arbitrary."""
    return jnp.roll(x, -by, axis=1)


def guesses(params: Params, shape: network.Shape, own: HeadShape, seen: Seen, count: int) -> list[jax.Array]:
    """Logits (batch, length, vocab) of the first to `count`th guess from each token on, where those before are right.

    The guess of number n at place p is of the token at p + n + 1. As in an engine, the head attends to entries that it
    made from true hidden states up to p, and then to those which it made from its own outputs.
    """
    state = seen.joined @ params[JOINT]
    keys: list[jax.Array] = []
    values: list[jax.Array] = []
    found = []
    for number in range(count):
        hidden = norm(state, params[part("hidden_norm")], shape.norm_eps)
        embedded = norm(ahead(seen.embedded, number + 1), params[part("input_layernorm")], shape.norm_eps)
        x = jnp.concatenate([embedded, hidden], axis=-1)
        keys.append(rotate(_heads(params, own, "k_proj", x), shape.rope_theta, number))
        values.append(_heads(params, own, "v_proj", x))
        query = rotate(_heads(params, own, "q_proj", x), shape.rope_theta, number)
        mixed = _attend(query, keys, values, seen.bias)
        state = state + mixed @ params[part("self_attn.o_proj")]
        normed = norm(state, params[part("post_attention_layernorm")], shape.norm_eps)
        gate = jax.nn.silu(normed @ params[part("mlp.gate_proj")]) * (normed @ params[part("mlp.up_proj")])
        state = state + gate @ params[part("mlp.down_proj")]
        found.append(norm(state, params[NORM], shape.norm_eps) @ params[HEAD])
    return found


def _heads(params: Params, own: HeadShape, name: str, x: jax.Array) -> jax.Array:
    made = x @ params[part(f"self_attn.{name}")]
    return made.reshape(*x.shape[:2], -1, own.head_dim)


def _attend(query: jax.Array, keys: list[jax.Array], values: list[jax.Array], bias: jax.Array) -> jax.Array:
    """Attention of each place to the first entries up to it, and to its own entry in each further list.

    query: (batch, length, heads, head_dim); keys, values: (batch, length, kv_heads, head_dim) each.
    """
    batch, length, heads, size = query.shape
    groups = heads // keys[0].shape[2]
    query = (query * size**-0.5).reshape(batch, length, -1, groups, size)
    scores = jnp.einsum("bqhgd,bkhd->bhgqk", query, keys[0]) + bias[:, None, None]
    own = [jnp.einsum("bqhgd,bqhd->bhgq", query, key)[..., None] for key in keys[1:]]
    weights = jax.nn.softmax(jnp.concatenate([scores, *own], axis=-1), axis=-1)
    mixed = jnp.einsum("bhgqk,bkhd->bqhgd", weights[..., :length], values[0])
    for number, value in enumerate(values[1:]):
        mixed += weights[..., length + number].transpose(0, 3, 1, 2)[..., None] * value[:, :, :, None]
    return mixed.reshape(batch, length, heads * size)


def counted(documents: jax.Array, weights: jax.Array, number: int) -> jax.Array:
    """Which places have a guess of this number (from 0) that an engine could need, bool (batch, length).

    It is of a word that the model has to write, with one before it: engines guess only after a token that was sampled.
    """
    by = number + 2
    place = jnp.arange(documents.shape[1])
    inside = (place < documents.shape[1] - by) & (documents == ahead(documents, by)) & (documents >= 0)
    return inside & (ahead(weights, by) == 1.0)


def loss(
    params: Params,
    shape: network.Shape,
    own: HeadShape,
    seen: Seen,
    documents: jax.Array,
    weights: jax.Array,
    count: int,
) -> jax.Array:
    """Mean cross-entropy of guesses against the model's probabilities, in nats."""
    total, tokens = jnp.float32(0), jnp.float32(0)
    for number, logits in enumerate(guesses(params, shape, own, seen, count)):
        chosen = counted(documents, weights, number)
        losses = -(ahead(seen.likely, number + 1) * jax.nn.log_softmax(logits)).sum(axis=-1)
        total += (losses * chosen).sum()
        tokens += chosen.sum()
    return total / jnp.maximum(tokens, 1)
