"""Attention with one key for all heads, which is their value, too, and entries in place of far keys (DeepSeek V4).

The cache has, of each token of the window, its key, and what the entries of its group will be made of. So groups that
are not complete are ordinary pages: they survive a step, a preemption and a prefix hit as keys do, and what a rejected
draft has written is overwritten by the token in its place. A step writes its tokens, then the entries of the groups
whose last token is one of them; then each token sees its window and the entries of complete groups.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import PartitionSpec

from jaxllm.models.attention_plan import CompressedAttentionPlan
from jaxllm.models.config import ModelConfig
from jaxllm.models.errors import ModelError
from jaxllm.models.forward_context import EntryPages, ForwardContext, LayerContext
from jaxllm.models.kv_shape import entry_shares, widest_row
from jaxllm.models.layers.compressor import Compressor, EntryParameters, RawParts, rotate_last, rotated_last
from jaxllm.models.layers.entries import Entries, Geometry, TokenRows, side_by_side
from jaxllm.models.layers.head_projection import HeadProjection
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.norm import make_norm
from jaxllm.models.layers.parameter import AS_THEY_ARE, merged, parameter
from jaxllm.models.layers.rope import Rotation, pair_order
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import over_model, partition, sharding
from jaxllm.pallas_kernels.compressed_attention import (
    KERNELS,
    EntryIndex,
    Units,
    attend_to_units,
    flat,
    write_units,
)
from jaxllm.pallas_kernels.ragged_batch import RaggedBatch


class _Step(NamedTuple):
    """What is the same on all devices."""

    rows: jax.Array
    """[T, U * H]: keys, rotated, and what entries are made of."""
    choice: EntryIndex | None
    kv_cache: jax.Array
    layer: jax.Array
    batch: RaggedBatch
    pages: EntryPages | None
    parameters: EntryParameters | None


class CompressedAttention(nnx.Module):
    """Projections, norms, rotary embedding, entries, attention; see `CompressedAttentionPlan`."""

    def __init__(
        self, config: ModelConfig, plan: CompressedAttentionPlan, options: ForwardOptions, *, dtype: jnp.dtype
    ) -> None:
        # There is no reference of its own.
        if options.attention not in ("xla", "reference", *KERNELS):
            raise ModelError(f"attention {options.attention!r} does not support keys that are values; use 'xla'")
        self.plan, self.mesh, self.one_layer_cache = plan, options.mesh, options.one_layer_cache
        self.implementation = options.attention
        hidden, heads, size = config.hidden_size, config.num_heads, plan.size
        linear = partial(Linear, bias=False, dtype=dtype, options=options)
        norm, of_head = partial(make_norm, dtype=dtype, options=options), rotated_last(plan, size)
        raw = {name: (count, rotated_last(plan, each)) for name, count, each in RawParts.of(plan).products()}
        self.parts = merged(1, {"query_down": (plan.query_rank, AS_THEY_ARE), "key": (size, of_head), **raw})
        self.down = linear(hidden, self.parts.size, axes=(None, "hidden"), rows=self.parts)
        self.query_norm = norm(plan.norm, plan.query_rank)
        self.query = linear(plan.query_rank, heads * size, axes=("heads", "hidden"), rows=of_head)
        self.head_norm = norm(NormPlan(eps=plan.norm.eps, weight=False), size)
        self.key_norm = norm(plan.norm, size, rows=of_head)
        self.sinks = parameter((heads,), jnp.dtype(jnp.float32), sharding(options.mesh, "heads"))
        project = partial(HeadProjection, plan.groups, heads * size // plan.groups, dtype=dtype, options=options)
        self.output_groups = project(plan.group_rank)
        self.output = linear(plan.groups * plan.group_rank, hidden, axes=("hidden", "heads"))
        has_entries = plan.compression is not None
        self.compressor = Compressor(config, plan, options, dtype=dtype) if has_entries else None
        self.geometry = Geometry(widest_row(config), *entry_shares(config, plan), options.max_model_len)

    def __call__(self, x: jax.Array, kv_cache: jax.Array, context: LayerContext) -> tuple[jax.Array, jax.Array]:
        """Map `x` [T, D] to [T, D]; returns the cache [L, P, C, U * H] with the new tokens and entries, too."""
        plan, forward = self.plan, context.forward
        query_latent, key, *raw = self.parts.split(self.down(x, forward))
        query_latent = self.query_norm(query_latent)
        query = self.head_norm(self.query(query_latent, forward).reshape(len(x), -1, plan.size))
        key = rotate_last(self.key_norm(key)[:, None], plan.rope_size, context.rotation)[:, 0]
        rows = jnp.concatenate([key, *raw], axis=-1)
        rows = jnp.pad(rows, ((0, 0), (0, plan.row_units * plan.size - rows.shape[1])))
        index = None if self.compressor is None else self.compressor.index(x, query_latent, context)
        parameters = None if self.compressor is None else self.compressor.parameters()
        layer, pages = jnp.asarray(0 if self.one_layer_cache else context.layer, jnp.int32), context.entries
        if pages is not None and self.one_layer_cache:
            pages = EntryPages(pages.table, 0)
        step = _Step(rows, index, kv_cache, layer, context.ragged, pages, parameters)
        query = rotate_last(query, plan.rope_size, context.rotation)
        attended, kv_cache = self._attend(query, self.sinks[...], step)
        return self._output(attended, context.rotation, forward), kv_cache

    def _output(self, attended: jax.Array, rotation: Rotation | None, forward: ForwardContext) -> jax.Array:
        """[T, D] of what attention gives, [T, N, H], whose values are keys, and rotated as these."""
        plan = self.plan
        if rotation is not None:
            attended = rotate_last(attended, plan.rope_size, (rotation[0], -rotation[1]))
        order = pair_order(plan.rope, plan.rope_size)
        if order is not None:
            plain = plan.size - plan.rope_size
            attended = attended[..., np.concatenate([np.arange(plain), plain + np.argsort(order)])]
        grouped = self.output_groups(attended.reshape(len(attended), plan.groups, -1), forward)
        return self.output(grouped.reshape(len(grouped), -1), forward)

    def _attend(self, query: jax.Array, sinks: jax.Array, step: _Step) -> tuple[jax.Array, jax.Array]:
        """Attention [T, N, H], by each device for its own heads, and the cache."""
        run = partial(_run, self.plan, self.geometry, self.implementation)
        if self.mesh is None:
            return run(query, sinks, step)
        heads, whole = partition(None, "heads"), PartitionSpec()
        sharded = over_model(run, self.mesh, (heads, partition("heads"), whole), (heads, whole))
        found: tuple[jax.Array, jax.Array] = sharded(query, sinks, step)
        return found


def _run(
    plan: CompressedAttentionPlan,
    geometry: Geometry,
    implementation: str,
    query: jax.Array,
    sinks: jax.Array,
    step: _Step,
) -> tuple[jax.Array, jax.Array]:
    """Write the step's tokens and entries, and attend."""
    kv_cache, batch = step.kv_cache, step.batch
    _, num_pages, page_size, _ = kv_cache.shape
    page_units = page_size * geometry.widest
    layer_units = num_pages * page_units
    units, is_token = flat(kv_cache, plan.size), jnp.arange(len(query), dtype=jnp.int32) < batch.num_tokens
    own = Units(batch.page_table, step.layer * layer_units, page_units, geometry.shares, plan.row_units)
    tokens = TokenRows(own, page_size)
    places = tokens.places(batch.token_rows, batch.positions)
    units = write_units(units, jnp.where(is_token, places, len(units)), step.rows)
    seen = tokens.seen(batch, plan.window)
    if step.pages is not None and step.parameters is not None:
        entries = Entries(plan, geometry, batch, tokens, step.pages, step.parameters, layer_units)
        units = entries.written(units)
        seen = side_by_side(seen, entries.seen(units, step.choice))
    options = {"scale": plan.size**-0.5, "sinks": sinks, "implementation": implementation}
    out = attend_to_units(query, units, *seen, batch.num_tokens, **options)
    return out, units.reshape(kv_cache.shape)
