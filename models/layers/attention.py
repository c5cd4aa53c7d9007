"""Grouped-query attention over the paged KV cache."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint
from jax.sharding import PartitionSpec

from jaxllm.models.attention_plan import AttentionPlan, DifferencePlan
from jaxllm.models.config import ModelConfig
from jaxllm.models.forward_context import LayerContext
from jaxllm.models.kv_shape import CacheLayout, LayerPages
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.mlp import MANY_TOKENS
from jaxllm.models.layers.norm import AnyNorm, NoNorm, RMSNorm, make_norm
from jaxllm.models.layers.parameter import Rows, merged, parameter
from jaxllm.models.layers.rope import Rotation, pair_order, query_growth, rotate
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import all_parallel, model_parallel, over_model, partition, sharding, split_kv_heads
from jaxllm.pallas_kernels.paged_attention import (
    AnyIndex,
    AttentionOptions,
    HeadNorms,
    RaggedBatch,
    get_backend,
    paged_attention,
)

if TYPE_CHECKING:
    from jaxllm.models.layers.difference import Difference

_CACHE = partition(None, None, None, "kv_heads")


class Attention(nnx.Module):
    """Projections, optional norms on query and key heads, rotary embedding, paged attention; see `AttentionPlan`."""

    def __init__(self, config: ModelConfig, plan: AttentionPlan, options: ForwardOptions, *, dtype: jnp.dtype) -> None:
        size, heads, given = config.head_size_of(plan), config.heads_of(plan), config.kv_heads_of(plan)
        self.plan, self.head_size, self.mesh = plan, size, options.mesh
        self.implementation, self.checks = options.attention, options.attention_checks
        self.one_layer_cache = options.one_layer_cache and not config.shares_keys
        devices = model_parallel(options.mesh)
        self.kv_heads = kv_heads = split_kv_heads(given, devices)
        layout = CacheLayout.of(config, options, dtype.name)
        self.pages = LayerPages.of(config, plan, layout)
        self.key_size, self.value_size = plan.key_size or size, plan.value_size or size
        self.times, self.num_heads = kv_heads // given, heads
        query_rows = Rows(group=self.key_size, order=pair_order(plan.rope, self.key_size))
        key_rows, linear = replace(query_rows, times=self.times), partial(Linear, dtype=dtype, options=options)
        self.parts = merged(devices, self._projected(query_rows, key_rows))
        project = partial(linear, bias=plan.qkv_bias, axes=("heads", "hidden"), rows=self.parts)
        self.query_key_value = project(plan.input_size or config.hidden_size, self.parts.size)
        values = heads * self.value_size
        self.output = linear(values, config.hidden_size, bias=plan.output_bias, axes=("hidden", "heads"))
        self.output_norm = make_norm(plan.output_norm, values, dtype=dtype, options=options, axes=("heads",))
        self.difference = None if plan.difference is None else _make_difference(self, plan.difference, options, dtype)
        norm = partial(_head_norm, plan, self.key_size, options=options, dtype=dtype)
        self.query_norm = norm(heads, query_rows, name="query_norm")
        self.key_norm = norm(kv_heads, key_rows, name="key_norm") if plan.source is None else NoNorm()
        value_norm = plan.value_norm if plan.source is None else None
        self.value_norm = make_norm(value_norm, self.value_size, dtype=dtype, options=options)
        self.sinks = parameter((heads,), dtype, sharding(options.mesh, "heads")) if plan.sinks else None
        has_scales = options.kv_cache is not None and options.kv_cache.scales == "checkpoint"
        self.kv_scales = parameter((2,), jnp.dtype("float32"), sharding(options.mesh)) if has_scales else None
        # Some backends take what the product makes, and rotate it on the way.
        self.scale_bytes = layout.scale_bytes(size)
        backend = get_backend(options.attention)
        is_supported = backend.supports_merged(size, dtype.name, layout.dtype, self.scale_bytes)
        # The room of an index is not in what the product makes.
        is_plain = _is_plain(plan, merges_norms=backend.merges_norms) and not config.index_heads
        # Of kernels for CPUs, only those of engines without a mesh are chosen with it.
        self.is_merged = is_supported and is_plain and (options.mesh is None or options.attention == "tpu")
        # For one TPU, XLA would have the residuals of large steps with tokens last, as the rotation once wanted them.
        # This takes the products before attention and at the end of a layer longer.
        is_alone = options.platform == "tpu" and all_parallel(options.mesh) == 1
        self.puts_tokens_first = self.is_merged and is_alone
        # For one TPU, XLA would rotate heads in the shape in which the kernel takes them, where a tile has one or two
        # rows in place of eight. Where devices share the heads, their split keeps the two apart.
        self.rotates_before = options.attention == "tpu" and devices == 1

    def _projected(self, query_rows: Rows, key_rows: Rows) -> dict[str, tuple[int, Rows]]:
        """Tensors of the product before attention, with their numbers of rows."""
        plan, heads = self.plan, self.num_heads
        parts = {} if plan.experts is not None else {"query": (heads * self.key_size, query_rows)}
        if plan.source is None:
            parts["key"] = (self.kv_heads * self.key_size, key_rows)
            if not plan.values_are_keys:
                value_rows = Rows(group=self.value_size, times=self.times)
                parts["value"] = (self.kv_heads * self.value_size, value_rows)
        assert query_rows.order is None or not plan.values_are_keys, "values would be in the order of pairs"
        if plan.output_gate is not None:
            parts["gate"] = (heads * self.value_size if plan.output_gate == "elements" else heads, Rows())
        return parts

    def __call__(self, x: jax.Array, kv_cache: jax.Array, context: LayerContext) -> tuple[jax.Array, jax.Array]:
        """Map `x` [T, D] to [T, D]; returns the cache (see `cache_shape`) with the new tokens, too."""
        attended, kv_cache = self.attend(self.query_key_value(x, context.forward), kv_cache, context)
        out = self.output(attended, context.forward)
        if self.puts_tokens_first and len(out) >= MANY_TOKENS:
            out = with_layout_constraint(out, Layout((0, 1)))
        return out, kv_cache

    def attend(self, projected: jax.Array, kv_cache: jax.Array, context: LayerContext) -> tuple[jax.Array, jax.Array]:
        """What lies between the projections: [T, N * H] from queries, keys and values side by side, and the cache."""
        if not self.is_merged:
            return self.attend_parts(self.parts.split(projected), kv_cache, context)
        assert context.rotation is not None
        layer, ragged = self._place(context)
        arrays = (projected, context.rotation, kv_cache, layer, ragged)
        specs = (partition(None, "heads"), PartitionSpec(), _CACHE, PartitionSpec(), PartitionSpec())
        return self._by_device(self._merged, arrays, specs, options=self._options())

    def attend_parts(
        self,
        parts: tuple[jax.Array, ...],
        kv_cache: jax.Array,
        context: LayerContext,
        index: AnyIndex | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """The same from queries, keys and values that are apart, [T, heads * H] each, and perhaps a gate.

        An `index` chooses the keys that are seen.
        """
        layer, ragged = self._place(context)
        query, key, value = self._heads(parts, context)
        if self.plan.is_causal:
            out, kv_cache = self._paged(query, key, value, kv_cache, layer, ragged, index, options=self._options())
        else:
            out = self._attend_whole_texts(query, key, value, context.ragged)
        out = out[..., : self.value_size] if self.difference is None else self.difference(out)
        return self.output_norm(self._gated(out, parts[-1]).reshape(len(parts[0]), -1)), kv_cache

    def _place(self, context: LayerContext) -> tuple[jax.Array, RaggedBatch]:
        """The layer of the cache, and the batch as this attention sees it."""
        layer = jnp.asarray(0 if self.one_layer_cache else context.layer, jnp.int32)
        ragged = context.ragged
        if ragged.visible_until is not None and not self.plan.sees_spans:
            ragged = replace(ragged, visible_until=None)
        return layer, ragged

    def _gated(self, out: jax.Array, gate: jax.Array) -> jax.Array:
        """What attention gives [T, N, H], times the activation of its gate [T, N] or [T, N * H], if it has one."""
        if self.plan.output_gate is None:
            return out
        activation = jax.nn.sigmoid if self.plan.gate_activation == "sigmoid" else jax.nn.softplus
        return out * activation(gate).reshape(*out.shape[:2], -1)

    def _heads(self, parts: tuple[jax.Array, ...], context: LayerContext) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Queries [T, N, H], keys and values [T, K, H], as attention takes them, from what products give.

        New keys and values of a layer that reads those of another one are zeros, which go nowhere.
        """
        plan = self.plan
        if plan.clip is not None:
            parts = tuple(jnp.clip(part, -plan.clip, plan.clip) for part in parts)
        query = self._turned(parts[0], self.query_norm, context.rotation)
        if plan.source is not None:
            key = value = jnp.zeros((len(query), self.kv_heads, self.head_size), query.dtype)
        else:
            key = self._turned(parts[1], self.key_norm, context.rotation)
            own = parts[1 if plan.values_are_keys else 2]
            value = self._value(own)
        if plan.query_scale is not None:
            growth = query_growth(plan.query_scale, context.ragged.positions)
            query = (query * growth[:, None, None]).astype(query.dtype)
        if self.rotates_before:
            query, key = lax.optimization_barrier(query), lax.optimization_barrier(key)
        return query, key, value

    def _value(self, part: jax.Array) -> jax.Array:
        """Value heads [T, K, H] from what a product gives."""
        heads = self.value_norm(part.reshape(len(part), -1, self.value_size))
        if self.plan.value_scale != 1.0:
            heads = heads * jnp.asarray(self.plan.value_scale, heads.dtype)
        return _padded(heads, self.head_size) if self.difference is None else self.difference.values(heads)

    def _turned(self, part: jax.Array, norm: AnyNorm, rotation: Rotation | None) -> jax.Array:
        """Query or key heads [T, heads, H], normalised and rotated, from what a product gives."""
        plan = self.plan
        if plan.norm_over == "all":
            part = norm(part)
        heads = part.reshape(len(part), -1, self.key_size)
        if plan.norm_over != "all" and not plan.norm_is_last:
            heads = norm(heads)
        if rotation is not None:
            heads = rotate(heads, rotation)
        return _padded(norm(heads) if plan.norm_over != "all" and plan.norm_is_last else heads, self.head_size)

    def _attend_whole_texts(self, query: jax.Array, key: jax.Array, value: jax.Array, ragged: RaggedBatch) -> jax.Array:
        """Attention [T, N, H] within the texts of a step; each is there from its first token to its last."""
        # Few models have it: starts of others are faster without the imports.
        from jaxllm.pallas_kernels.segment_attention import api, segments

        texts = segments.Segments(ragged.query_start, ragged.token_rows, ragged.num_tokens, ragged.num_requests)
        group = query.shape[1] // key.shape[1]
        key, value = jnp.repeat(key, group, axis=1), jnp.repeat(value, group, axis=1)
        scale = self.key_size**-0.5 if self.plan.scale is None else self.plan.scale
        return api.segment_attention(query, key, value, texts, scale=scale, window=self.plan.window or None)

    def _options(self) -> AttentionOptions:
        plan = self.plan
        slopes = (
            None if plan.alibi is None else jnp.asarray(alibi_slopes(self.num_heads, plan.alibi) * plan.alibi_scale)
        )
        norms = None
        if self.is_merged and plan.norm is not None:
            query, key = self.query_norm, self.key_norm
            assert isinstance(query, RMSNorm)
            assert isinstance(key, RMSNorm)
            norms = HeadNorms(query.norm.weight, key.norm.weight, plan.norm.eps)
        return AttentionOptions(
            self.key_size**-0.5 if plan.scale is None else plan.scale,
            (not plan.is_chunked and plan.window) or None,
            soft_cap=plan.soft_cap,
            sinks=None if self.sinks is None else self.sinks[...].astype(jnp.float32),
            alibi_slopes=slopes,
            k_scale=None if self.kv_scales is None else self.kv_scales[...][0],
            v_scale=None if self.kv_scales is None else self.kv_scales[...][1],
            scale_bytes=self.scale_bytes,
            writes=plan.source is None,
            checks=self.checks,
            head_norms=norms,
        )

    def _paged(self, *arrays: Any, options: AttentionOptions) -> tuple[jax.Array, jax.Array]:
        """`paged_attention`, by each device for its own heads; `arrays` are its arguments."""
        kv_heads, whole, index = partition(None, "kv_heads"), PartitionSpec(), arrays[-1]
        index = None if index is None else index.split_by(kv_heads, whole)
        specs = (partition(None, "heads"), kv_heads, kv_heads, _CACHE, whole, whole, index)

        def attend(own: AttentionOptions, *arrays: Any) -> tuple[jax.Array, jax.Array]:
            query, key, value, kv_cache, layer, ragged, index = arrays
            pages = self.pages.view_layer(kv_cache)
            out, pages = paged_attention(
                query, key, value, pages, layer, ragged, own, index=index, implementation=self.implementation
            )
            return out, pages.reshape(kv_cache.shape)

        return self._by_device(attend, arrays, specs, options=options)

    def _merged(self, options: AttentionOptions, *arrays: Any) -> tuple[jax.Array, jax.Array]:
        """The backend's `merged`, of one device's heads."""
        projected, rotation, kv_cache, layer, ragged = arrays
        merged = get_backend(self.implementation).merged
        assert merged is not None
        out, pages = merged(projected, rotation, self.pages.view_layer(kv_cache), layer, ragged, options)
        return out, pages.reshape(kv_cache.shape)

    def _by_device(
        self,
        attend: Callable[..., tuple[jax.Array, jax.Array]],
        arrays: Sequence[Any],
        specs: Sequence[Any],
        *,
        options: AttentionOptions,
    ) -> tuple[jax.Array, jax.Array]:
        """What `attend(options, *arrays)` gives, by each device for its own heads; `specs` are those of `arrays`."""
        by_head = {"sinks": options.sinks, "alibi_slopes": options.alibi_slopes}
        by_layer = {"k_scale": options.k_scale, "v_scale": options.v_scale, "head_norms": options.head_norms}

        def own(by_head: dict[str, Any], by_layer: dict[str, Any], *arrays: Any) -> tuple[jax.Array, jax.Array]:
            return attend(replace(options, **by_head, **by_layer), *arrays)

        if self.mesh is None:
            return own(by_head, by_layer, *arrays)
        in_specs = (partition("heads"), PartitionSpec(), *specs)
        sharded = over_model(own, self.mesh, in_specs, (partition(None, "heads"), _CACHE))
        return sharded(by_head, by_layer, *arrays)


def _is_plain(plan: AttentionPlan, *, merges_norms: bool) -> bool:
    """Whether nothing but a rotation happens between projections and attention, which is over pages.

    There may be norms of single heads, if a backend merges them.
    """
    is_merged_norm = merges_norms and plan.norm_over == "head" and not plan.norm_is_last and _is_by_squares(plan.norm)
    has_norms = plan.norm is not None and not is_merged_norm
    changed = has_norms or plan.clip is not None or plan.query_scale is not None or plan.output_gate is not None
    of_others = plan.source is not None or plan.values_are_keys or plan.value_norm is not None
    has_zeros = plan.key_size is not None or plan.value_size is not None
    of_others = of_others or has_zeros or plan.value_scale != 1.0 or plan.output_norm is not None
    of_others = of_others or plan.experts is not None or plan.index is not None
    return plan.rope is not None and plan.is_causal and not changed and not of_others


def _is_by_squares(norm: NormPlan | None) -> bool:
    """Whether a norm is one by mean square, with a weight and nothing else."""
    return norm is not None and norm.kind == "rms" and norm.weight and norm.gate_rank is None


def _head_norm(
    plan: AttentionPlan, head_size: int, heads: int, rows: Rows, *, name: str, options: ForwardOptions, dtype: jnp.dtype
) -> AnyNorm:
    """The norm called `name` of `heads` query or key heads, whose parameters lie as `rows` says."""
    make = partial(make_norm, plan.norm, dtype=dtype, options=options)
    if plan.norm_over == "head":
        return make(head_size, rows=replace(rows, times=1))
    if plan.norm_over == "all":
        return make(heads * head_size, axes=("heads",), rows=rows)
    each = replace(rows, group=1, order=None, columns=rows.order)
    whole = merged(1, {name: (rows.times, each)}, heads // rows.times) if plan.norm_is_split else each
    return make(heads, head_size, axes=("heads", None), rows=whole)


def _padded(heads: jax.Array, size: int) -> jax.Array:
    """Heads [T, K, S] with zeros up to `size` elements."""
    missing = size - heads.shape[-1]
    return jnp.pad(heads, ((0, 0), (0, 0), (0, missing))) if missing else heads


def _make_difference(
    attention: Attention, plan: DifferencePlan, options: ForwardOptions, dtype: jnp.dtype
) -> "Difference":
    # Few models have it: starts of others are faster without the import.
    from jaxllm.models.layers.difference import Difference

    return Difference(attention.key_size, attention.times, plan, options, dtype=dtype)


def alibi_slopes(num_heads: int, largest: float = 8.0) -> np.ndarray:
    """Slope of each head, float32 [N]: powers of two whose exponents go down to -`largest`.

    Where the number of heads is no power of two, the slopes of the next smaller one come first, then every other one
    of the next larger, as in the paper's code.
    """
    whole = 1 << (num_heads.bit_length() - 1)
    first = 2.0 ** (-largest * np.arange(1, whole + 1) / whole)
    others = 2.0 ** (-largest * np.arange(1, 2 * whole + 1, 2) / (2 * whole))
    return np.concatenate([first, others])[:num_heads].astype(np.float32)
