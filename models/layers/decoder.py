"""A decoder layer, as its plan says."""

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.attention_plan import AnyAttentionPlan, AttentionPlan
from jaxllm.models.cache import ChosenPages, States
from jaxllm.models.config import ModelConfig
from jaxllm.models.forward_context import LayerContext
from jaxllm.models.layers.attention import Attention
from jaxllm.models.layers.mlp import MLP, GatedMLP, make_mlp
from jaxllm.models.layers.norm import AnyNorm, make_norm
from jaxllm.models.layers.parameter import parameter
from jaxllm.models.mlp_plan import ExpertsPlan
from jaxllm.models.options import ForwardOptions
from jaxllm.models.plan import LayerPlan, NormedResidualPlan, RecurrentPlan, TokenInputPlan
from jaxllm.models.sharding import sharding

if TYPE_CHECKING:
    from jaxllm.models.layers.compressed_attention import CompressedAttention
    from jaxllm.models.layers.experts import MixtureOfExperts
    from jaxllm.models.layers.latent_attention import LatentAttention
    from jaxllm.models.layers.recurrent import RecurrentBlock
    from jaxllm.models.layers.token_input import TokenInput

LayerCache = jax.Array | States | ChosenPages
"""A layer's part of the cache: pages (see `cache_shape`), perhaps with keys that layers share, or states."""


class DecoderLayer(nnx.Module):
    """`x + attention(norm(x))`, then `x + mlp(norm(x))`; see `LayerPlan` for what else there may be."""

    def __init__(self, config: ModelConfig, plan: LayerPlan, options: ForwardOptions, dtype: jnp.dtype) -> None:
        def norm(of: str) -> nnx.Module:
            return make_norm(getattr(plan, of), config.hidden_size, dtype=dtype, options=options)

        self.attention_norm, self.attention_output_norm = norm("attention_norm"), norm("attention_output_norm")
        recurrence = plan.recurrence
        self.attention = None if recurrence else _make_attention(config, plan.attention, options, dtype)
        self.recurrence = _make_recurrence(config, recurrence, options, dtype) if recurrence else None
        # Its keys and values are written by the tower, as if they were those of another layer.
        cross = None if plan.cross is None else plan.cross.but(source=0)
        self.cross_norm = None if cross is None else norm("cross_norm")
        self.cross = None if cross is None else Attention(config, cross, options, dtype=dtype)
        self.mlp_norm, self.mlp_output_norm = norm("mlp_norm"), norm("mlp_output_norm")
        self.mlp = _feed_forward(config, plan, options, dtype)
        self.residual_norm = norm("residual_norm")
        own = plan.residual_mlp
        self.residual_mlp = None if own is None else make_mlp(config, own, dtype=dtype, options=options)
        token_input = plan.token_input
        self.token_input = None if token_input is None else _make_token_input(config, token_input, options, dtype)
        self.output_scale = Scale(options, dtype=dtype) if plan.output_scale else None
        self.plan = plan

    def __call__(self, x: jax.Array, cache: LayerCache, context: LayerContext) -> tuple[jax.Array, LayerCache]:
        """Map `x` [T, D] to [T, D] and update its part of the cache at the context's layer.

        What a layer leaves to the next one to add lies after its result: [T, 2 D].
        """
        late = None
        if self.plan.adds_late:
            x, late = jnp.split(x, 2, axis=-1)
        x, cache = self._blocks(x, cache, context)
        if late is not None:
            x = x + late
        if self.token_input is not None:
            assert context.token_input is not None
            x = x + self.token_input(x, context.token_input, context.forward)
        return x if self.output_scale is None else self.output_scale(x), cache

    def _blocks(self, x: jax.Array, cache: LayerCache, context: LayerContext) -> tuple[jax.Array, LayerCache]:
        """Attention, or what is in its place, and the MLP."""
        normed = self.attention_norm(x)
        mixed, cache = self._mix(normed, cache, context)
        own = self.plan.attention_residual
        after = self._add(x, mixed, self.attention_output_norm) if own is None else _joined(normed, mixed, own)
        if self.cross is not None:
            after, cache = self._cross(after, cache, context)
        if self.mlp is None:
            return after, cache
        if not self.plan.is_parallel:
            normed = self.mlp_norm(after)
        elif self.plan.mlp_norm is not None:
            normed = self.mlp_norm(x)
        if self.residual_mlp is not None:
            into = normed if self.plan.residual_norm is None else self.residual_norm(after)
            after = after + self.residual_mlp(into, context.forward)
        out, own = self.mlp(normed, context.forward), self.plan.mlp_residual
        if self.plan.is_late:
            return jnp.concatenate([after, out], axis=-1), cache
        return self._add(after, out, self.mlp_output_norm) if own is None else _joined(normed, out, own), cache

    def _mix(self, normed: jax.Array, cache: LayerCache, context: LayerContext) -> tuple[jax.Array, LayerCache]:
        """The output of attention, or of the block in its place."""
        if self.recurrence is not None:
            assert isinstance(cache, tuple)
            return self.recurrence(normed, cache, context)
        assert self.attention is not None
        assert not isinstance(cache, tuple)
        # Choices of keys are shared by layers with latent attention alone.
        attention: Any = self.attention
        mixed, own = attention(normed, cache, context)
        return mixed, own

    def _cross(self, x: jax.Array, cache: LayerCache, context: LayerContext) -> tuple[jax.Array, LayerCache]:
        """`x` and what cross attention adds to it."""
        assert self.cross is not None
        assert self.cross_norm is not None
        assert context.cross is not None
        assert isinstance(cache, jax.Array)
        seen, cache = self.cross(self.cross_norm(x), cache, context._replace(ragged=context.cross))
        return x + seen, cache

    def _add(self, residual: jax.Array, x: jax.Array, norm: nnx.Module) -> jax.Array:
        """The residual and what a block gives, which has a norm after it."""
        assert isinstance(norm, AnyNorm)
        scale = self.plan.residual_scale
        if self.plan.normalises_sum:
            return norm(residual + (x if scale == 1.0 else x * scale))
        x = norm(x)
        return residual + (x if scale == 1.0 else x * scale)


def _joined(normed: jax.Array, out: jax.Array, plan: NormedResidualPlan) -> jax.Array:
    """What goes into a block and what comes out, in the proportions of `plan`."""
    kept = normed if plan.keep == 1.0 else normed * jnp.asarray(plan.keep, normed.dtype)
    return kept + (out if plan.add == 1.0 else out * jnp.asarray(plan.add, out.dtype))


class Scale(nnx.Module):
    """`x` times a number."""

    def __init__(self, options: ForwardOptions, *, dtype: jnp.dtype) -> None:
        self.weight = parameter((1,), dtype, sharding(options.mesh, None))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map [T, D]."""
        return x * self.weight[...]


# Kinds of layers that most models do not have are imported when one has them: starts are faster without.


def _make_attention(
    config: ModelConfig, plan: AnyAttentionPlan, options: ForwardOptions, dtype: jnp.dtype
) -> "Attention | LatentAttention | CompressedAttention":
    if not isinstance(plan, AttentionPlan) or not plan.is_ordinary:
        from jaxllm.models.layers.attention_kinds import make_uncommon_attention

        return make_uncommon_attention(config, plan, options, dtype=dtype)
    return Attention(config, plan, options, dtype=dtype)


def _make_recurrence(
    config: ModelConfig, plan: RecurrentPlan, options: ForwardOptions, dtype: jnp.dtype
) -> "RecurrentBlock":
    from jaxllm.models.layers.recurrent import make_recurrent

    return make_recurrent(config, plan, options, dtype=dtype)


def _make_token_input(
    config: ModelConfig, plan: TokenInputPlan, options: ForwardOptions, dtype: jnp.dtype
) -> "TokenInput":
    from jaxllm.models.layers.token_input import TokenInput

    return TokenInput(config, plan, options, dtype=dtype)


def _feed_forward(
    config: ModelConfig, plan: LayerPlan, options: ForwardOptions, dtype: jnp.dtype
) -> "MixtureOfExperts | GatedMLP | MLP | None":
    """The block of a plan, if there is one."""
    if not plan.has_mlp:
        return None
    if isinstance(plan.mlp, ExpertsPlan):
        from jaxllm.models.layers.experts import MixtureOfExperts

        return MixtureOfExperts(config, plan.mlp, dtype=dtype, options=options)
    return make_mlp(config, plan.mlp, dtype=dtype, options=options)
