"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434) over a paged cache of latents.

The products that make keys and values of latents are absorbed: queries are multiplied by those of keys, and what
attention gives by those of values. So no key or value is ever made, for prompts as for decodes, and attention reads
one latent for all heads. Devices share the heads; each has the whole latents, and their whole cache.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec

from jaxllm.models.attention_plan import LatentAttentionPlan
from jaxllm.models.cache import ChosenPages
from jaxllm.models.config import ModelConfig
from jaxllm.models.forward_context import LayerContext
from jaxllm.models.layers.head_growth import HeadGrowth
from jaxllm.models.layers.head_projection import HeadProjection
from jaxllm.models.layers.key_index import KeyIndexer
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.norm import make_norm
from jaxllm.models.layers.parameter import AS_THEY_ARE, Rows, merged, parameter
from jaxllm.models.layers.rope import pair_order, query_growth, rotate
from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import over_model, partition, sharding
from jaxllm.pallas_kernels.latent_attention import (
    ChosenKeys,
    KeyIndex,
    LatentOptions,
    indexed_latent_attention,
    latent_attention,
)
from jaxllm.pallas_kernels.paged_attention import RaggedBatch

LatentCache = jax.Array | ChosenPages


class LatentAttention(nnx.Module):
    """Projections to latents and back, their norms, rotary embedding, attention; see `LatentAttentionPlan`."""

    def __init__(
        self, config: ModelConfig, plan: LatentAttentionPlan, options: ForwardOptions, *, dtype: jnp.dtype
    ) -> None:
        self.plan, self.mesh = plan, options.mesh
        self.implementation, self.checks = options.attention, options.attention_checks
        self.one_layer_cache = options.one_layer_cache and not config.shares_keys
        self.is_alone, self.rope_padding = not config.shared_choice, _rope_padding(config, plan)
        linear, make = partial(Linear, dtype=dtype, options=options), partial(make_norm, dtype=dtype, options=options)
        heads, hidden = config.heads_of(plan), config.hidden_size
        parts: dict[str, tuple[int, Rows]] = {"query_down": (plan.query_rank, AS_THEY_ARE)} if plan.query_rank else {}
        if plan.source is None:
            parts["latent_down"] = (plan.rank + plan.rope_size, _rotated_last(plan, plan.rank))
        self.parts = merged(1, parts) if parts else None
        size = 0 if self.parts is None else self.parts.size
        down = partial(linear, hidden, size, bias=plan.bias, axes=(None, "hidden"))
        self.down = None if self.parts is None else down(rows=self.parts)
        self.query_norm = make(plan.norm, plan.query_rank) if plan.query_rank else None
        self.latent_norm = make(plan.norm if plan.source is None else None, plan.rank)
        self.rope_norm = make(
            plan.rope_norm if plan.source is None else None, plan.rope_size, rows=_rotated_last(plan, 0)
        )
        self.growth = HeadGrowth(heads, options) if plan.grows else None
        into = (1 + plan.takes_both) * (plan.query_rank or hidden)
        self.query = linear(
            into,
            heads * plan.query_size,
            bias=False,
            axes=("heads", "hidden"),
            rows=_rotated_last(plan, plan.plain_size),
        )
        project = partial(HeadProjection, heads, plan.rank, dtype=dtype, options=options)
        self.key_up, self.value_up = project(plan.plain_size), project(plan.value_size)
        has_index = plan.index is not None and not plan.shares_choice
        self.indexer = KeyIndexer(config, plan, options, dtype=dtype) if has_index else None
        gate = partial(linear, into if plan.takes_both else hidden, bias=False, axes=("heads", "hidden"))
        gates = heads * (plan.value_size if plan.output_gate == "elements" else 1)
        self.gate = None if plan.output_gate is None else gate(gates)
        exact, by_head = jnp.dtype(jnp.float32), sharding(options.mesh, "heads")
        self.sinks = parameter((heads,), exact, by_head) if plan.sinks else None
        self.output = linear(heads * plan.value_size, hidden, bias=plan.bias, axes=("hidden", "heads"))

    def __call__(self, x: jax.Array, kv_cache: LatentCache, context: LayerContext) -> tuple[jax.Array, LatentCache]:
        """Map `x` [T, D] to [T, D]; returns the cache (see `latent_cache_shape`) with the new tokens, too.

        Where layers share choices of keys, it has the last choice, which a layer with an index replaces.
        """
        plan, forward = self.plan, context.forward
        down = () if self.parts is None or self.down is None else self.parts.split(self.down(x, forward))
        of = x if self.query_norm is None else self.query_norm(down[0])
        both = jnp.concatenate([of, down[0]], axis=-1) if plan.takes_both else of
        query = self.query(both, forward).reshape(len(x), -1, plan.query_size)
        if plan.query_scale is not None:
            growth = query_growth(plan.query_scale, context.ragged.positions)
            query = (query * growth[:, None, None]).astype(query.dtype)
        if self.growth is not None:
            query = self.growth(query, context.ragged.positions)
        plain, q_rope = query[..., : plan.plain_size], query[..., plan.plain_size :]
        if context.rotation is not None:
            q_rope = rotate(q_rope, context.rotation)
        q_latent, q_rope = self.key_up.transposed(plain, forward), _wider(q_rope, self.rope_padding)
        layer = jnp.asarray(0 if self.one_layer_cache else context.layer, jnp.int32)
        new = self._new(down[-1], context) if plan.source is None else self._none(x)
        pages = kv_cache.pages if isinstance(kv_cache, ChosenPages) else kv_cache
        index: KeyIndex | ChosenKeys | None = None if self.indexer is None else self.indexer(x, of, context)
        if isinstance(kv_cache, ChosenPages) and plan.shares_choice:
            assert plan.index is not None
            index = ChosenKeys(kv_cache.places, plan.index.pool)
        attended, pages, chosen = self._attend(q_latent, q_rope, *new, pages, layer, index, ragged=context.ragged)
        kv_cache = pages if chosen is None or self.is_alone else ChosenPages(pages, chosen.places)
        values = self.value_up(attended, forward)
        if self.gate is not None:
            gate = self.gate(both if plan.takes_both else x, forward)
            values = values * jax.nn.sigmoid(gate).reshape(*values.shape[:2], -1)
        return self.output(values.reshape(len(x), -1), forward), kv_cache

    def _new(self, down: jax.Array, context: LayerContext) -> tuple[jax.Array, jax.Array]:
        """The latents and the rotated parts of tokens, of what the product gives, [T, Z] and [T, Y]."""
        plan = self.plan
        latent, rope = self.latent_norm(down[:, : plan.rank]), self.rope_norm(down[:, plan.rank :])
        if plan.latent_scale != 1.0:
            latent = latent * jnp.asarray(plan.latent_scale, latent.dtype)
        if context.rotation is not None:
            rope = rotate(rope[:, None], context.rotation)[:, 0]
        return latent, _wider(rope, self.rope_padding)

    def _none(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Zeros in their place, where the cache has them from another layer."""
        sizes = self.plan.rank, self.plan.rope_size + self.rope_padding
        return jnp.zeros((len(x), sizes[0]), x.dtype), jnp.zeros((len(x), sizes[1]), x.dtype)

    def _attend(
        self, *arrays: jax.Array | KeyIndex | ChosenKeys | None, ragged: RaggedBatch
    ) -> tuple[jax.Array, jax.Array, ChosenKeys | None]:
        """`latent_attention`, by each device for its own heads; `arrays` are its arguments before the batch.

        And the keys that were chosen, if there is an index.
        """
        plan = self.plan
        scale = plan.query_size**-0.5 if plan.scale is None else plan.scale
        sinks = None if self.sinks is None else self.sinks[...]

        def attend(
            ragged: RaggedBatch, sinks: jax.Array | None, *arrays: Any
        ) -> tuple[jax.Array, jax.Array, ChosenKeys | None]:
            writes = plan.source is None
            options = LatentOptions(scale, checks=self.checks, sinks=sinks, window=plan.window, writes=writes)
            q_latent, q_rope, latent, k_rope, kv_cache, layer, index = arrays
            new, implementation = (q_latent, q_rope, latent, k_rope), self.implementation
            if index is None:
                out = latent_attention(*new, kv_cache, layer, ragged, options, implementation=implementation)
                return *out, None
            return indexed_latent_attention(
                *new, kv_cache, layer, ragged, options, index, implementation=implementation
            )

        if self.mesh is None:
            return attend(ragged, sinks, *arrays)
        heads, whole = partition(None, "heads"), PartitionSpec()
        in_specs = (whole, partition("heads"), heads, heads, *(whole,) * (len(arrays) - 2))
        sharded = over_model(attend, self.mesh, in_specs, (heads, whole, whole))
        return sharded(ragged, sinks, *arrays)


def _rope_padding(config: ModelConfig, plan: LatentAttentionPlan) -> int:
    """Zeros after what is rotated, so that layers whose latents are of one size have keys of one size, too."""
    plans = (plan, *config.latents)
    return max(each.rope_size for each in plans) - plan.rope_size if len({each.rank for each in plans}) == 1 else 0


def _wider(x: jax.Array, by: int) -> jax.Array:
    """`x` with so many zeros after its last axis."""
    return jnp.pad(x, ((0, 0),) * (x.ndim - 1) + ((0, by),)) if by else x


def _rotated_last(plan: LatentAttentionPlan, size: int) -> Rows:
    """Rows of heads that have `size` elements and then those that are rotated."""
    order = pair_order(plan.rope, plan.rope_size) or range(plan.rope_size)
    return Rows(group=size + plan.rope_size, order=(*range(size), *(size + place for place in order)))
