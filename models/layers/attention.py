"""Grouped-query attention over the paged KV cache."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.sharding import PartitionSpec

from jaxllm.models.config import ModelConfig
from jaxllm.models.layers.linear import Before, Linear
from jaxllm.models.layers.norm import RMSNorm
from jaxllm.models.layers.parameter import AS_THEY_ARE, Rows, merged
from jaxllm.models.layers.rope import Rotation, rotate
from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import model_parallel, partition, split_kv_heads
from jaxllm.pallas_kernels.paged_attention.api import paged_attention
from jaxllm.pallas_kernels.paged_attention.cpu.attention import merged_attention, takes_merged
from jaxllm.pallas_kernels.paged_attention.ragged import RaggedBatch


class Attention(nnx.Module):
    """Projections, optional norms on query and key heads, rotary embedding, paged attention."""

    def __init__(self, config: ModelConfig, options: ForwardOptions, *, dtype: jnp.dtype) -> None:
        self.head_size, self.implementation, self.mesh = config.head_size, options.attention, options.mesh
        self.one_layer_cache = options.one_layer_cache
        devices = model_parallel(options.mesh)
        kv_heads = split_kv_heads(config, devices)
        queries, keys = config.num_heads * config.head_size, kv_heads * config.head_size
        repeated = Rows(group=config.head_size, times=kv_heads // config.num_kv_heads)
        linear = partial(Linear, dtype=dtype, options=options)

        parts = {"query": (queries, AS_THEY_ARE), "key": (keys, repeated), "value": (keys, repeated)}
        self.parts = merged(devices, parts)
        project = partial(linear, bias=config.qkv_bias, axes=("heads", "hidden"), rows=self.parts)
        self.query_key_value = project(config.hidden_size, self.parts.size)
        self.output = linear(queries, config.hidden_size, bias=config.output_bias, axes=("hidden", "heads"))
        self.query_norm = self._norm(config, options, dtype) if config.qk_norm else None
        self.key_norm = self._norm(config, options, dtype) if config.qk_norm else None
        # On CPU the kernel takes what the product makes, and rotates it on the way.
        takes = takes_merged(config.head_size, dtype.name) and not config.qk_norm
        self.is_merged = takes and options.attention == "cpu" and options.mesh is None
        # For one TPU, XLA would rotate heads in the shape in which the kernel takes them, where a tile has one or two
        # rows in place of eight. Where devices share the heads, their split keeps the two apart.
        self.rotates_before = options.attention == "tpu" and devices == 1

    @staticmethod
    def _norm(config: ModelConfig, options: ForwardOptions, dtype: jnp.dtype) -> RMSNorm:
        return RMSNorm(config.head_size, config.rms_norm_eps, dtype=dtype, options=options)

    def __call__(
        self,
        x: jax.Array,
        rotation: Rotation,
        ragged: RaggedBatch,
        kv_cache: jax.Array,
        layer: int | jax.Array,
        window: int | jax.Array | None,
        *,
        before: Before | None = None,
        plus: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Attend from `before(x)`, of `x` [T, D], to the cache (see `cache_shape`).

        Returns [T, D], to which `plus` [T, D] is added, and the cache with the new tokens.
        """
        num_rows = ragged.num_tokens
        layer = jnp.asarray(0 if self.one_layer_cache else layer, jnp.int32)
        projected = self.query_key_value(x, num_rows, before=before)
        if self.is_merged:
            out, kv_cache = merged_attention(
                projected, *rotation, kv_cache, layer, ragged, scale=self.head_size**-0.5, window=window
            )
            return self.output(out, num_rows, plus=plus), kv_cache
        query, key, value = (part.reshape(x.shape[0], -1, self.head_size) for part in self.parts.split(projected))
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        query, key = rotate(query, rotation), rotate(key, rotation)
        if self.rotates_before:
            query, key = lax.optimization_barrier(query), lax.optimization_barrier(key)
        out, kv_cache = self._attend(query, key, value, kv_cache, layer, window, ragged)
        return self.output(out.reshape(x.shape[0], -1), num_rows, plus=plus), kv_cache

    def _attend(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        kv_cache: jax.Array,
        layer: jax.Array,
        window: int | jax.Array | None,
        ragged: RaggedBatch,
    ) -> tuple[jax.Array, jax.Array]:
        """Paged attention, by each device for its own heads."""

        def attend(
            query: jax.Array, key: jax.Array, value: jax.Array, kv_cache: jax.Array, layer: jax.Array, *rest: Any
        ) -> tuple[jax.Array, jax.Array]:
            ragged, *traced_window = rest
            return paged_attention(
                query,
                key,
                value,
                kv_cache,
                layer,
                ragged,
                scale=self.head_size**-0.5,
                window=traced_window[0] if traced_window else window,
                implementation=self.implementation,
            )

        arguments = (query, key, value, kv_cache, layer, ragged, *((window,) if isinstance(window, jax.Array) else ()))
        if self.mesh is None:
            return attend(*arguments)
        heads, cache, whole = partition(None, "heads"), partition(None, None, None, "kv_heads"), PartitionSpec()
        in_specs = (heads, *(partition(None, "kv_heads"),) * 2, cache, *(whole,) * (len(arguments) - 4))
        sharded = jax.shard_map(attend, mesh=self.mesh, in_specs=in_specs, out_specs=(heads, cache), check_vma=False)
        return sharded(*arguments)
