"""A decoder layer with fused products, and the choice among the kinds of decoder layers."""

import jax
import jax.numpy as jnp

from jaxllm.models.attention_plan import AttentionPlan
from jaxllm.models.config import ModelConfig
from jaxllm.models.forward_context import LayerContext
from jaxllm.models.layers.attention import Attention
from jaxllm.models.layers.decoder import DecoderLayer, LayerCache
from jaxllm.models.layers.mlp import GatedMLP
from jaxllm.models.layers.norm import RMSNorm
from jaxllm.models.mlp_plan import MLPPlan
from jaxllm.models.options import ForwardOptions
from jaxllm.models.plan import LayerPlan
from jaxllm.pallas_kernels.linear import Fused


class FusedDecoderLayer(DecoderLayer):
    """A `DecoderLayer` whose products take over what is around them: norms, gates, residuals. See `can_fuse`."""

    def __call__(self, x: jax.Array, cache: LayerCache, context: LayerContext) -> tuple[jax.Array, LayerCache]:
        """See `DecoderLayer`."""
        attention, mlp, forward = self.attention, self.mlp, context.forward
        assert isinstance(self.attention_norm, RMSNorm)
        assert isinstance(self.mlp_norm, RMSNorm)
        assert isinstance(mlp, GatedMLP)
        if not isinstance(attention, Attention):
            mixed, cache = self._mix(self.attention_norm(x), cache, context)
            x = x + mixed
        else:
            projected = attention.query_key_value(x, forward, Fused(self.attention_norm.norm))
            assert isinstance(cache, jax.Array)
            attended, cache = attention.attend(projected, cache, context)
            x = attention.output(attended, forward, Fused(residual=x))
        wide = mlp.gate_up(x, forward, Fused(self.mlp_norm.norm))
        is_silu = mlp.activation.is_silu
        return mlp.down(wide if is_silu else mlp.activation(wide), forward, Fused(is_gated=is_silu, residual=x)), cache


def can_fuse(plan: LayerPlan) -> bool:
    """Whether a layer is one block after the other, each with an RMS norm before it and nothing after it."""
    norms = plan.attention_norm, plan.mlp_norm
    return (
        all(norm is not None and norm.kind == "rms" and norm.weight and not norm.gate_rank for norm in norms)
        and plan.attention_output_norm is None
        and plan.mlp_output_norm is None
        and plan.has_mlp
        and plan.residual_mlp is None
        and plan.cross is None
        and isinstance(plan.mlp, MLPPlan)
        and plan.mlp.is_gated
        and plan.mlp.norm is None
        and not plan.is_parallel
        and not plan.normalises_sum
        and plan.residual_scale == 1.0
        and plan.attention_residual is None
        and plan.mlp_residual is None
        and plan.token_input is None
        and not plan.output_scale
        and plan.streams is None
        and not plan.adds_late
        and (not isinstance(plan.attention, AttentionPlan) or plan.attention.is_ordinary)
    )


def make_decoder_layer(config: ModelConfig, plan: LayerPlan, options: ForwardOptions, dtype: jnp.dtype) -> DecoderLayer:
    """The layer of a plan, fused where native kernels multiply."""
    if plan.streams is not None:
        # Few models have them: starts of others are faster without the import.
        from jaxllm.models.layers.residual_streams import make_streams_layer

        return make_streams_layer(config, plan, options, dtype)
    kind = FusedDecoderLayer if options.native_matmul and can_fuse(plan) else DecoderLayer
    return kind(config, plan, options, dtype)
