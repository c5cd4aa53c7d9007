"""RWKV's time and channel mixing."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.cache import States
from jaxllm.models.channel_plan import ShiftedMLPPlan, WeightedMeanPlan
from jaxllm.models.config import ModelConfig
from jaxllm.models.forward_context import LayerContext
from jaxllm.models.layers.activation import find_activation
from jaxllm.models.layers.by_heads import by_heads
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.parameter import parameter
from jaxllm.models.layers.states import read_states, write_states
from jaxllm.models.layers.token_shift import TokenShift
from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import sharding
from jaxllm.pallas_kernels.recurrence import LayerStates
from jaxllm.pallas_kernels.weighted_mean import WeightedMeanInputs, weighted_mean


class TimeMixing(nnx.Module):
    """See `WeightedMeanPlan`. Keys and values are float32 in the recurrence. Devices share channels."""

    def __init__(
        self, config: ModelConfig, plan: WeightedMeanPlan, options: ForwardOptions, *, dtype: jnp.dtype
    ) -> None:
        self.plan, self.options = plan, options
        size, channels = config.hidden_size, plan.channels
        linear = partial(Linear, bias=False, dtype=dtype, options=options)
        project = partial(linear, size, channels, axes=("heads", "hidden"))
        self.shift = TokenShift(size, ("key", "value", "receptance"), options, dtype=dtype)
        self.key, self.value, self.receptance = project(), project(), project()
        exact = partial(parameter, (channels,), jnp.dtype("float32"), sharding(options.mesh, "heads"))
        self.decay, self.bonus = exact(), exact()
        self.output = linear(channels, size, axes=("hidden", "heads"))

    def __call__(self, x: jax.Array, states: States, context: LayerContext) -> tuple[jax.Array, States]:
        """Map `x` [T, D] to [T, D]; see `RecurrentBlock`."""
        plan, forward = self.plan, context.forward
        before = read_states(states[:1], plan, context, x.dtype)[0]
        mixtures, after, inputs = self.shift(x, before, states[2:3], context)
        key, value, receptance = (
            project(mixture, forward)
            for project, mixture in zip((self.key, self.value, self.receptance), mixtures, strict=True)
        )
        out, held = by_heads(
            self._kernel,
            (key.astype(jnp.float32), value.astype(jnp.float32)),
            (*states[1:2], *states[3:]),
            (plan.states[1], *plan.draft_inputs[1:]),
            context,
            self.options.mesh,
            weights=(-jnp.exp(self.decay[...]), self.bonus[...]),
        )
        new = write_states(states[:1], (after,), context)
        gated = jax.nn.sigmoid(receptance) * out.astype(x.dtype)
        return self.output(gated, forward), (*new, *held[:1], *inputs, *held[1:])

    def _kernel(self, arrays: tuple[jax.Array, ...], states: LayerStates) -> tuple[jax.Array, States]:
        return weighted_mean(WeightedMeanInputs(*arrays), states, platform=self.options.platform)


class ChannelMixing(nnx.Module):
    """See `ShiftedMLPPlan`."""

    def __init__(self, config: ModelConfig, plan: ShiftedMLPPlan, options: ForwardOptions, *, dtype: jnp.dtype) -> None:
        self.plan, size = plan, config.hidden_size
        linear = partial(Linear, bias=False, dtype=dtype, options=options)
        self.shift = TokenShift(size, ("key", "receptance"), options, dtype=dtype)
        self.key = linear(size, plan.size, axes=("mlp", "hidden"))
        self.value = linear(plan.size, size, axes=("hidden", "mlp"))
        self.receptance = linear(size, size, axes=(None, "hidden"))

    def __call__(self, x: jax.Array, states: States, context: LayerContext) -> tuple[jax.Array, States]:
        """Map `x` [T, D] to [T, D]; see `RecurrentBlock`."""
        forward = context.forward
        before = read_states(states[:1], self.plan, context, x.dtype)[0]
        (key, receptance), after, inputs = self.shift(x, before, states[1:], context)
        wide = find_activation(self.plan.activation)(self.key(key, forward))
        gate = jax.nn.sigmoid(self.receptance(receptance, forward))
        return gate * self.value(wide, forward), (*write_states(states[:1], (after,), context), *inputs)
