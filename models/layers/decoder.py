"""One pre-norm decoder layer, as Llama, Mistral and Qwen have it."""

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.config import ModelConfig
from jaxllm.models.layers.attention import Attention, Context
from jaxllm.models.layers.mlp import GatedMLP
from jaxllm.models.layers.norm import RMSNorm
from jaxllm.models.options import ForwardOptions
from jaxllm.pallas_kernels.linear import Fused


class DecoderLayer(nnx.Module):
    """`x + attention(norm(x))`, then `x + mlp(norm(x))`."""

    def __init__(self, config: ModelConfig, options: ForwardOptions, layer: int, dtype: jnp.dtype) -> None:
        self.input_norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype=dtype, options=options)
        self.attention = Attention(config, options, dtype=dtype)
        self.mlp_norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype=dtype, options=options)
        self.mlp = GatedMLP(config, dtype=dtype, options=options)

    def __call__(self, x: jax.Array, kv_cache: jax.Array, context: Context) -> tuple[jax.Array, jax.Array]:
        """Map `x` [T, D] to [T, D] and update the cache (see `cache_shape`) at the context's layer."""
        attended, kv_cache = self.attention(self.input_norm(x), kv_cache, context)
        x = x + attended
        return x + self.mlp(self.mlp_norm(x), context.num_tokens), kv_cache


class FusedDecoderLayer(DecoderLayer):
    """The same where products take over what is around them: norms, gates, residuals."""

    def __call__(self, x: jax.Array, kv_cache: jax.Array, context: Context) -> tuple[jax.Array, jax.Array]:
        """See `DecoderLayer`."""
        attention, mlp, rows = self.attention, self.mlp, context.num_tokens
        projected = attention.query_key_value(x, rows, Fused(self.input_norm.norm))
        attended, kv_cache = attention.attend(projected, kv_cache, context)
        x = attention.output(attended, rows, Fused(residual=x))
        wide = mlp.gate_up(x, rows, Fused(self.mlp_norm.norm))
        is_silu = mlp.activation.is_silu
        return mlp.down(wide if is_silu else mlp.activation(wide), rows, Fused(is_gated=is_silu, residual=x)), kv_cache


def make_decoder_layer(config: ModelConfig, options: ForwardOptions, layer: int, dtype: jnp.dtype) -> DecoderLayer:
    """Layer number `layer`, fused where native kernels multiply."""
    kind = FusedDecoderLayer if options.native_matmul else DecoderLayer
    return kind(config, options, layer, dtype)
