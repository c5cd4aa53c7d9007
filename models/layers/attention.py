"""Grouped-query attention over the paged KV cache."""

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.sharding import PartitionSpec

from jaxllm.models.config import ModelConfig
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.norm import RMSNorm
from jaxllm.models.layers.parameter import AS_THEY_ARE, Rows, merged
from jaxllm.models.layers.rope import Rotation, rotate
from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import model_parallel, partition, split_kv_heads
from jaxllm.pallas_kernels.paged_attention import AttentionOptions, RaggedBatch, find, paged_attention


class Context(NamedTuple):
    """What a layer is told beside its input."""

    rotation: Rotation
    ragged: RaggedBatch
    layer: int | jax.Array
    """Which layer of the cache it reads and writes."""
    window: int | jax.Array | None
    """See `AttentionOptions`."""

    @property
    def num_tokens(self) -> jax.Array:
        """int32 [], tokens that are not padding."""
        return self.ragged.num_tokens


class Attention(nnx.Module):
    """Projections, optional norms on query and key heads, rotary embedding, paged attention."""

    def __init__(self, config: ModelConfig, options: ForwardOptions, *, dtype: jnp.dtype) -> None:
        self.head_size, self.implementation, self.mesh = config.head_size, options.attention, options.mesh
        self.one_layer_cache, self.checks = options.one_layer_cache, options.attention_checks
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
        # Some backends take what the product makes, and rotate it on the way.
        takes_merged = find(options.attention).takes_merged(config.head_size, dtype.name)
        self.is_merged = takes_merged and not config.qk_norm and options.mesh is None
        # For one TPU, XLA would rotate heads in the shape in which the kernel takes them, where a tile has one or two
        # rows in place of eight. Where devices share the heads, their split keeps the two apart.
        self.rotates_before = options.attention == "tpu" and devices == 1

    @staticmethod
    def _norm(config: ModelConfig, options: ForwardOptions, dtype: jnp.dtype) -> RMSNorm:
        return RMSNorm(config.head_size, config.rms_norm_eps, dtype=dtype, options=options)

    def __call__(self, x: jax.Array, kv_cache: jax.Array, context: Context) -> tuple[jax.Array, jax.Array]:
        """Map `x` [T, D] to [T, D]; returns the cache (see `cache_shape`) with the new tokens, too."""
        attended, kv_cache = self.attend(self.query_key_value(x, context.num_tokens), kv_cache, context)
        return self.output(attended, context.num_tokens), kv_cache

    def attend(self, projected: jax.Array, kv_cache: jax.Array, context: Context) -> tuple[jax.Array, jax.Array]:
        """What lies between the projections: [T, N * H] from queries, keys and values side by side, and the cache."""
        rotation, ragged, layer, window = context
        layer = jnp.asarray(0 if self.one_layer_cache else layer, jnp.int32)
        options = AttentionOptions(self.head_size**-0.5, window, checks=self.checks)
        merged = find(self.implementation).merged if self.is_merged else None
        if merged is not None:
            return merged(projected, rotation, kv_cache, layer, ragged, options)
        tokens = len(projected)
        query, key, value = (part.reshape(tokens, -1, self.head_size) for part in self.parts.split(projected))
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        query, key = rotate(query, rotation), rotate(key, rotation)
        if self.rotates_before:
            query, key = lax.optimization_barrier(query), lax.optimization_barrier(key)
        out, kv_cache = self._paged(query, key, value, kv_cache, layer, ragged, options=options)
        return out.reshape(tokens, -1), kv_cache

    def _paged(self, *arrays: Any, options: AttentionOptions) -> tuple[jax.Array, jax.Array]:
        """`paged_attention`, by each device for its own heads; `arrays` are its arguments."""
        traced = (options.window,) if isinstance(options.window, jax.Array) else ()

        def attend(*arrays: Any) -> tuple[jax.Array, jax.Array]:
            query, key, value, kv_cache, layer, ragged, *window = arrays
            own = replace(options, window=window[0]) if window else options
            return paged_attention(query, key, value, kv_cache, layer, ragged, own, implementation=self.implementation)

        if self.mesh is None:
            return attend(*arrays, *traced)
        heads, cache, whole = partition(None, "heads"), partition(None, None, None, "kv_heads"), PartitionSpec()
        in_specs = (heads, *(partition(None, "kv_heads"),) * 2, cache, *(whole,) * (2 + len(traced)))
        sharded = jax.shard_map(attend, mesh=self.mesh, in_specs=in_specs, out_specs=(heads, cache), check_vma=False)
        return sharded(*arrays, *traced)
