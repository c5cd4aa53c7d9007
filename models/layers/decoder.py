"""One pre-norm decoder layer, as Llama, Mistral and Qwen have it."""

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.config import ModelConfig
from jaxllm.models.layers.attention import Attention
from jaxllm.models.layers.mlp import GatedMLP
from jaxllm.models.layers.norm import RMSNorm
from jaxllm.models.layers.rope import Rotation
from jaxllm.models.options import ForwardOptions
from jaxllm.pallas_kernels.paged_attention.ragged import RaggedBatch


class DecoderLayer(nnx.Module):
    """`x + attention(norm(x))`, then `x + mlp(norm(x))`."""

    def __init__(self, config: ModelConfig, options: ForwardOptions, layer: int, dtype: jnp.dtype) -> None:
        self.input_norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype=dtype, options=options)
        self.attention = Attention(config, options, dtype=dtype)
        self.mlp_norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype=dtype, options=options)
        self.mlp = GatedMLP(config, dtype=dtype, options=options)

    def __call__(
        self,
        x: jax.Array,
        rotation: Rotation,
        ragged: RaggedBatch,
        kv_cache: jax.Array,
        layer: int | jax.Array,
        window: int | jax.Array | None,
    ) -> tuple[jax.Array, jax.Array]:
        """Map `x` [T, D] to [T, D] and update the cache [L, P, C, 2K, H] at `layer`."""
        x, kv_cache = self.attention(x, rotation, ragged, kv_cache, layer, window, before=self.input_norm, plus=x)
        return self.mlp(x, ragged.num_tokens, before=self.mlp_norm, plus=x), kv_cache
