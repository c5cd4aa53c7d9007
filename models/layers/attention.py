"""Grouped-query attention over the paged KV cache."""

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.config import ModelConfig
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.norm import RMSNorm
from jaxllm.models.layers.rope import Rotation, rotate
from jaxllm.models.options import ForwardOptions
from jaxllm.pallas_kernels.paged_attention.api import paged_attention
from jaxllm.pallas_kernels.paged_attention.ragged import RaggedBatch


class Attention(nnx.Module):
    """Projections, optional norms on query and key heads, rotary embedding, paged attention."""

    def __init__(self, config: ModelConfig, options: ForwardOptions, *, dtype: jnp.dtype) -> None:
        self.head_size, self.implementation = config.head_size, options.attention
        queries, keys = config.num_heads * config.head_size, config.num_kv_heads * config.head_size

        def linear(in_size: int, out_size: int, bias: bool) -> Linear:
            return Linear(in_size, out_size, bias=bias, dtype=dtype, platform=options.platform)

        self.query = linear(config.hidden_size, queries, config.qkv_bias)
        self.key = linear(config.hidden_size, keys, config.qkv_bias)
        self.value = linear(config.hidden_size, keys, config.qkv_bias)
        self.output = linear(queries, config.hidden_size, config.output_bias)
        self.query_norm = RMSNorm(config.head_size, config.rms_norm_eps, dtype=dtype) if config.qk_norm else None
        self.key_norm = RMSNorm(config.head_size, config.rms_norm_eps, dtype=dtype) if config.qk_norm else None

    def __call__(
        self,
        x: jax.Array,
        rotation: Rotation,
        ragged: RaggedBatch,
        kv_cache: jax.Array,
        layer: int | jax.Array,
        window: int | jax.Array | None,
    ) -> tuple[jax.Array, jax.Array]:
        """Attend from `x` [T, D] to the cache [L, P, C, 2K, H]; returns [T, D] and the cache with the new tokens."""
        query, key, value = (
            project(x).reshape(x.shape[0], -1, self.head_size) for project in (self.query, self.key, self.value)
        )
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        out, kv_cache = paged_attention(
            rotate(query, rotation),
            rotate(key, rotation),
            value,
            kv_cache,
            layer,
            ragged,
            scale=self.head_size**-0.5,
            window=window,
            implementation=self.implementation,
        )
        return self.output(out.reshape(x.shape[0], -1)), kv_cache
