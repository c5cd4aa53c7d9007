"""Learned queries that read a crop one after the other, as DeepSeek-OCR 2 has them (arXiv 2601.20552).

Axis letters: P patches, C channels, V size of the layers, L queries, T patches that are left and queries, K KV heads, G
query heads for each, H head size, D hidden size of the language model.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.attention_plan import RopeConfig
from jaxllm.models.forward_context import ALL_ROWS
from jaxllm.models.layers.embedding import Table
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.norm import make_norm
from jaxllm.models.layers.rope import Rotation, rotate, rotation
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.options import ForwardOptions
from jaxllm.models.towers.perceiver import PerceiverMLP
from jaxllm.models.towers.plan import VisionPlan
from jaxllm.models.towers.repeated import RepeatedLayers
from jaxllm.models.towers.sam import Strides


@dataclass(frozen=True, kw_only=True)
class QueryEncoderPlan:
    """Every fourth patch each way, then as many learned queries, through layers of a language model.

    Patches see one another; a query sees all patches and the queries before it. What becomes of queries are the rows,
    after a product. There are queries for crops that leave so many patches, the fewest first, which are
    `num_queries`, and `inner_channels` between the two convolutions. A learned row, which no crop makes, comes first.
    """

    size: int
    inner_channels: int
    num_queries: tuple[int, ...]
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    rope: RopeConfig
    activation: str = "silu"
    norm: NormPlan = NormPlan()

    @property
    def head_size(self) -> int:
        """The size of a head."""
        return self.size // self.num_heads

    def make(
        self, vision: VisionPlan, patches_per_row: int, hidden_size: int, options: ForwardOptions, dtype: jnp.dtype
    ) -> "QueryEncoder":
        """The module."""
        return QueryEncoder(self, vision.hidden_size, hidden_size, options, dtype)


class QueryEncoder(nnx.Module):
    """See `QueryEncoderPlan`."""

    def __init__(
        self, plan: QueryEncoderPlan, channels: int, hidden_size: int, options: ForwardOptions, dtype: jnp.dtype
    ) -> None:
        self.plan = plan
        self.strides = Strides((channels, plan.inner_channels, plan.size), options, dtype)
        self.queries = nnx.List([Table(count, plan.size, dtype, options) for count in plan.num_queries])
        self.layers = RepeatedLayers(lambda: QueryLayer(plan, options, dtype), plan.num_layers, options)
        self.norm = make_norm(plan.norm, plan.size, dtype=dtype, options=options)
        self.linear = Linear(plan.size, hidden_size, bias=True, dtype=dtype, axes=(None, None), options=options)
        self.separator = Table(1, hidden_size, dtype, options)

    def __call__(self, hidden: jax.Array, num_rows: jax.Array) -> jax.Array:
        """Rows [1 + L, D] of [P, C], which come line by line. All of them count."""
        patches = self.strides(hidden)
        queries = self.queries[self.plan.num_queries.index(len(patches))].weight[...]
        x = jnp.concatenate([patches, queries])
        place = jnp.arange(len(x), dtype=jnp.int32)
        is_seen = (place < len(patches)) | (place <= place[:, None])
        rope = self.plan.rope
        turned = rotation(rope, self.plan.head_size, rope.trained_length, place)

        def step(layer: QueryLayer, number: jax.Array, x: jax.Array) -> jax.Array:
            return layer(x, is_seen, turned)

        found = self.norm(self.layers.run(step, x)[len(patches) :])
        return jnp.concatenate([self.separator.weight[...], self.linear(found, ALL_ROWS)])


class QueryLayer(nnx.Module):
    """`x + attention(norm(x))`, then `x + mlp(norm(x))`."""

    def __init__(self, plan: QueryEncoderPlan, options: ForwardOptions, dtype: jnp.dtype) -> None:
        size, self.num_kv_heads, self.head_size = plan.size, plan.num_kv_heads, plan.head_size
        norm = partial(make_norm, plan.norm, size, dtype=dtype, options=options)
        linear = partial(Linear, dtype=dtype, axes=(None, None), options=options)
        self.attention_norm, self.mlp_norm = norm(), norm()
        self.query, self.output = linear(size, size, bias=True), linear(size, size, bias=False)
        self.key, self.value = (linear(size, plan.num_kv_heads * plan.head_size, bias=True) for _ in range(2))
        self.mlp = PerceiverMLP((size, plan.intermediate_size, size), plan.activation, options, dtype)

    def __call__(self, x: jax.Array, is_seen: jax.Array, turned: Rotation) -> jax.Array:
        """Map [T, V] to [T, V], where each sees what is true in its row of bool [T, T]."""
        normed = self.attention_norm(x)
        query, key, value = (
            project(normed, ALL_ROWS).reshape(len(x), -1, self.head_size)
            for project in (self.query, self.key, self.value)
        )
        grouped = rotate(query, turned).reshape(len(x), self.num_kv_heads, -1, self.head_size)
        scores = jnp.einsum("tkgh,skh->kgts", grouped, rotate(key, turned), preferred_element_type=jnp.float32)
        weights = jax.nn.softmax(jnp.where(is_seen, scores * self.head_size**-0.5, -jnp.inf), axis=-1)
        attended = jnp.einsum("kgts,skh->tkgh", weights.astype(value.dtype), value)
        x = x + self.output(attended.reshape(len(x), -1), ALL_ROWS)
        return x + self.mlp(self.mlp_norm(x), ALL_ROWS)
