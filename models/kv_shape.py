"""The array that caches what attention of a model keeps of every token: keys and values of heads, or latents."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import jax

from jaxllm.models.attention_plan import AnyAttentionPlan, AttentionPlan, CompressedAttentionPlan
from jaxllm.models.cache_plan import CachePlan, plan_cache, plan_compressed_cache
from jaxllm.models.config import ModelConfig
from jaxllm.models.kv_type import SCALE_BYTES, KVCacheType
from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import model_parallel, split_kv_heads
from jaxllm.pallas_kernels.paged_attention import CacheGeometry, cache_shape, get_backend

if TYPE_CHECKING:
    from jaxllm.pallas_kernels.latent_attention import LatentSizes


def latent_sizes(model: ModelConfig) -> "LatentSizes | None":
    """The sizes of a token in a layer's cache, if the layers have latent attention, or one key in place of latents."""
    if model.latent is None and not model.compressed:
        return None
    # Few models have it: starts of others are faster without the import.
    from jaxllm.pallas_kernels.latent_attention import LatentSizes

    if model.latent is None:
        return LatentSizes(widest_row(model) * model.head_size, 0)
    plans = model.latents or (model.latent,)
    token = max(plan.rank + plan.rope_size + plan.index_size for plan in plans)
    widest = max(plans, key=lambda plan: plan.rank)
    if len({plan.rank for plan in plans}) == 1:
        # Keys are padded to one size, see `LatentAttention`.
        rope, index = max(plan.rope_size for plan in plans), max(plan.index_size for plan in plans)
        return LatentSizes(widest.rank, rope, index)
    return LatentSizes(widest.rank, widest.rope_size, token - widest.rank - widest.rope_size)


def latent_kinds(model: ModelConfig) -> tuple[tuple[int, int, int], ...]:
    """Sizes of a latent, of its rotary part and of an index key, as each kind of latent attention keeps them."""
    ranks, widest = {plan.rank for plan in model.latents}, max((plan.rope_size for plan in model.latents), default=0)
    rope = widest if len(ranks) == 1 else 0
    return tuple((plan.rank, rope or plan.rope_size, plan.index_size) for plan in model.latents)


FEWEST_TOKENS = 4
"""Tokens of a page at least, where there are entries that stand for groups of them."""


def widest_row(model: ModelConfig) -> int:
    """Units of a token in the layers that keep the most, see `CompressedAttentionPlan`."""
    return max(plan.row_units for plan in model.compressed)


def entry_shares(model: ModelConfig, plan: AnyAttentionPlan) -> tuple[int, int]:
    """How many layers like one fit in a place of a page, and the entries of how many; 0: it has none.

    These are as many as fit in a page of `FEWEST_TOKENS`, or of any multiple of that.
    """
    assert isinstance(plan, CompressedAttentionPlan)
    widest, made = widest_row(model), plan.compression
    entries = 0 if made is None else max(widest * min(made.rate, FEWEST_TOKENS) // plan.entry_units, 1)
    return widest // plan.row_units, entries


@dataclass(frozen=True)
class CacheLayout:
    """How an attention keeps keys and values in arrays of a type, each of `devices` its part of the heads."""

    implementation: str
    dtype: str
    devices: int = 1
    for_tpu: bool = False
    scale_unit: int = 0
    """Size of heads that have `SCALE_BYTES` for dynamic scales, larger ones as many times more; 0: there are none.

    So layers with heads of other sizes fit together in a page.
    """

    @classmethod
    def of(cls, model: ModelConfig, options: ForwardOptions, dtype: str) -> Self:
        """The shape for a model whose activations have a type (NumPy's name)."""
        kind = options.kv_cache or KVCacheType(dtype)
        unit = scale_unit(model) if kind.is_dynamic else 0
        # Heads of several kinds do not share rows.
        for_tpu = options.platform == "tpu" and not model.index_heads
        return cls(options.attention, kind.dtype, model_parallel(options.mesh), for_tpu, unit)

    def scale_bytes(self, head_size: int) -> int:
        """Bytes of a token's scale after a stored head."""
        return -(-SCALE_BYTES * head_size // self.scale_unit) if self.scale_unit else 0

    def stored_size(self, head_size: int) -> int:
        """Numbers of a stored head, those that hold its scale included."""
        return head_size + self.scale_bytes(head_size)

    def shape(
        self, heads: int, head_size: int, *, layers: int = 1, pages: int = 1, page_size: int = 16
    ) -> tuple[int, ...]:
        """Shape for one device's `heads`; axis 0 is the layer, axis 1 the page, axis 3 the heads."""
        size = self.stored_size(head_size)
        geometry = CacheGeometry(layers, pages, page_size, heads, size, self.dtype, self.for_tpu)
        return cache_shape(self.implementation, geometry)

    def heads_of(self, model: ModelConfig, plan: AnyAttentionPlan) -> tuple[int, int]:
        """Number and size of a layer's KV heads on one device, with that of its index, if the model has one."""
        heads = split_kv_heads(model.kv_heads_of(plan), self.devices) // self.devices
        return heads + model.index_heads, model.head_size_of(plan)

    def plan(self, model: ModelConfig, *, by_window: bool) -> CachePlan:
        """Where the layers are in the cache. Raises `ModelError` for heads that do not fit together."""
        if model.compressed:
            shares = [entry_shares(model, layer.attention) for layer in model.layers]
            rows, entries = zip(*shares, strict=True)
            return plan_compressed_cache(model.layers, rows, entries, by_window=by_window)
        if len(model.kv_heads) == 1:
            return plan_cache(model.layers, by_window=by_window)
        sizes = tuple(math.prod(self.shape(*self.heads_of(model, layer.attention))) for layer in model.layers)
        return plan_cache(model.layers, by_window=by_window, sizes=sizes)

    def widest(self, model: ModelConfig) -> tuple[int, int]:
        """Number and size of KV heads on one device that fill a place of a page, see `CachePlan.shares`.

        Where layers differ, they are those of the first, as many times as there are layers like it in a place.
        """
        layer = next(iter(model.attention_layers), model.layers[0])
        heads, size = self.heads_of(model, layer.attention)
        if len(model.kv_heads) == 1:
            return heads, size
        return heads * self.plan(model, by_window=False).shares[model.layers.index(layer)], size

    def array(self, model: ModelConfig, *, layers: int, pages: int, page_size: int) -> tuple[int, ...]:
        """The shape on all devices together; axis 0 is the layer, axis 1 the page.

        KV heads, axis 3, are split over the devices. Latents are not: each device has them all.
        """
        sizes = latent_sizes(model)
        if sizes is not None:
            # As in `latent_sizes`.
            from jaxllm.pallas_kernels.latent_attention import LatentGeometry, latent_cache_shape

            geometry = LatentGeometry(layers, pages, page_size, sizes, self.dtype, self.for_tpu)
            return latent_cache_shape(self.implementation, geometry)
        shape = list(self.shape(*self.widest(model), layers=layers, pages=pages, page_size=page_size))
        shape[3] *= self.devices
        return tuple(shape)


def scale_unit(model: ModelConfig) -> int:
    """See `CacheLayout.scale_unit`."""
    return min(size for _, size in model.kv_heads)


def kv_shape(
    model: ModelConfig,
    implementation: str,
    *,
    layers: int,
    pages: int,
    page_size: int,
    dtype: str,
    devices: int = 1,
    for_tpu: bool = False,
) -> tuple[int, ...]:
    """`CacheLayout.array`, of a cache without dynamic scales."""
    layout = CacheLayout(implementation, dtype, devices, for_tpu)
    return layout.array(model, layers=layers, pages=pages, page_size=page_size)


@dataclass(frozen=True)
class LayerPages:
    """How a layer sees a cache in whose places there are layers with other heads, too."""

    layout: CacheLayout
    heads: tuple[int, int] | None
    """Number and size of its KV heads on one device; None where all layers have the same."""
    widest_size: int
    """Stored numbers of a head of those that fill a place of a page."""

    @classmethod
    def of(cls, model: ModelConfig, attention: AttentionPlan, layout: CacheLayout) -> Self:
        """The shape for a layer of the model."""
        heads = None if len(model.kv_heads) == 1 else layout.heads_of(model, attention)
        return cls(layout, heads, layout.stored_size(layout.widest(model)[1]))

    def view_layer(self, kv_cache: jax.Array) -> jax.Array:
        """One device's cache [L, P, ...] as the attention has it for the layer's heads, [L, P * n, ...].

        No copy, but for XLA's attention on TPUs: the axes that are tiled stay what they are, see `tpu_cache_shape`.
        """
        if self.heads is None:
            return kv_cache
        page_size = get_backend(self.layout.implementation).page_size(kv_cache.shape, self.widest_size)
        own = self.layout.shape(*self.heads, page_size=page_size)
        return kv_cache.reshape(kv_cache.shape[0], -1, *own[2:])
