"""Idefics 2's projector (arXiv 2405.02246): a fixed number of learned queries that attend to all patches of a crop.

Axis letters: P patches, V hidden size of the vision model, L queries, N query heads, K KV heads, H head size, D hidden
size of the language model.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.forward_context import ALL_ROWS, ForwardContext
from jaxllm.models.layers.activation import ACTIVATIONS
from jaxllm.models.layers.embedding import Table
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.norm import make_norm
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.options import ForwardOptions
from jaxllm.models.towers.plan import VisionPlan


@dataclass(frozen=True, kw_only=True)
class PerceiverPlan:
    """A gated MLP from V to D, with `inner_size` in between, then layers of `num_queries` learned queries."""

    inner_size: int
    activation: str
    num_queries: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    layer_activation: str = "silu"
    norm: NormPlan = NormPlan()

    def make(
        self, vision: VisionPlan, patches_per_row: int, hidden_size: int, options: ForwardOptions, dtype: jnp.dtype
    ) -> "Perceiver":
        """The module."""
        return Perceiver(self, vision.hidden_size, hidden_size, options, dtype)


class Perceiver(nnx.Module):
    """See `PerceiverPlan`."""

    def __init__(
        self, plan: PerceiverPlan, vision_size: int, hidden_size: int, options: ForwardOptions, dtype: jnp.dtype
    ) -> None:
        sizes = vision_size, plan.inner_size, hidden_size
        self.project = PerceiverMLP(sizes, plan.activation, options, dtype)
        self.queries = Table(plan.num_queries, hidden_size, dtype, options)
        self.layers = nnx.List([PerceiverLayer(plan, hidden_size, options, dtype) for _ in range(plan.num_layers)])
        self.norm = make_norm(plan.norm, hidden_size, dtype=dtype, options=options)

    def __call__(self, hidden: jax.Array, num_rows: jax.Array) -> jax.Array:
        """Rows [L, D] of [P, V]; the first `num_rows` of P count."""
        seen = self.project(hidden, ForwardContext(num_rows))
        queries = self.queries.weight[...]
        for layer in self.layers:
            queries = layer(queries, seen, num_rows)
        return self.norm(queries)


class PerceiverMLP(nnx.Module):
    """`down(activation(gate(x)) * up(x))`, between sizes (in, between, out)."""

    def __init__(self, sizes: tuple[int, int, int], activation: str, options: ForwardOptions, dtype: jnp.dtype) -> None:
        before, inner, after = sizes
        linear = partial(Linear, bias=False, dtype=dtype, axes=(None, None), options=options)
        self.gate, self.up, self.down = linear(before, inner), linear(before, inner), linear(inner, after)
        self.activation = activation

    def __call__(self, x: jax.Array, context: ForwardContext) -> jax.Array:
        """Map [T, in] to [T, out]."""
        return self.down(ACTIVATIONS[self.activation](self.gate(x, context)) * self.up(x, context), context)


class PerceiverLayer(nnx.Module):
    """Attention of the queries to patches and themselves, then an MLP."""

    def __init__(self, plan: PerceiverPlan, size: int, options: ForwardOptions, dtype: jnp.dtype) -> None:
        norm = partial(make_norm, plan.norm, size, dtype=dtype, options=options)
        linear = partial(Linear, bias=False, dtype=dtype, axes=(None, None), options=options)
        self.query_norm, self.patch_norm, self.mlp_norm = norm(), norm(), norm()
        self.head_size, self.num_kv_heads = plan.head_size, plan.num_kv_heads
        self.query, self.output = (
            linear(size, plan.num_heads * plan.head_size), linear(plan.num_heads * plan.head_size, size)
        )  # fmt: skip
        self.key, self.value = (linear(size, plan.num_kv_heads * plan.head_size) for _ in range(2))
        self.mlp = PerceiverMLP((size, 4 * size, size), plan.layer_activation, options, dtype)

    def __call__(self, queries: jax.Array, patches: jax.Array, num_patches: jax.Array) -> jax.Array:
        """Map queries [L, D] to [L, D], with `patches` [P, D]; the first `num_patches` count."""
        normed = self.query_norm(queries)
        seen = jnp.concatenate([self.patch_norm(patches), normed])
        place = jnp.arange(len(seen), dtype=jnp.int32)
        is_seen = (place < num_patches) | (place >= len(patches))
        # [L, K, N / K, H], [P + L, K, H].
        query = self.query(normed, ALL_ROWS).reshape(len(queries), self.num_kv_heads, -1, self.head_size)
        key, value = (
            project(seen, ALL_ROWS).reshape(len(seen), self.num_kv_heads, self.head_size)
            for project in (self.key, self.value)
        )
        scores = jnp.einsum("lkgh,pkh->kglp", query, key, preferred_element_type=jnp.float32) * self.head_size**-0.5
        weights = jax.nn.softmax(jnp.where(is_seen, scores, -jnp.inf), axis=-1).astype(value.dtype)
        attended = jnp.einsum("kglp,pkh->lkgh", weights, jnp.where(is_seen[:, None, None], value, 0))
        queries = queries + self.output(attended.reshape(len(queries), -1), ALL_ROWS)
        return queries + self.mlp(self.mlp_norm(queries), ALL_ROWS)
