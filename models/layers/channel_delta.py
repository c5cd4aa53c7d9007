"""Kimi's delta attention: a gated delta net whose decays are by element."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.cache import States
from jaxllm.models.config import ModelConfig
from jaxllm.models.forward_context import LayerContext
from jaxllm.models.layers.activation import find_activation
from jaxllm.models.layers.by_heads import by_heads
from jaxllm.models.layers.gated_delta import unit
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.norm import make_norm
from jaxllm.models.layers.parameter import AS_THEY_ARE, merged, parameter
from jaxllm.models.layers.short_convolution import Convolution
from jaxllm.models.layers.states import read_states, write_states
from jaxllm.models.options import ForwardOptions
from jaxllm.models.recurrent_plan import ChannelDeltaPlan
from jaxllm.models.sharding import model_parallel, sharding
from jaxllm.pallas_kernels.gated_delta import GatedDeltaInputs, gated_delta
from jaxllm.pallas_kernels.recurrence import LayerStates


class _Rates(nnx.Module):
    """`a_log` [V], apart from other parameters: checkpoints have further axes of one."""

    def __init__(self, a_log: nnx.Param[jax.Array]) -> None:
        self.a_log = a_log


class _Steps(nnx.Module):
    """`dt_bias` [V * H]."""

    def __init__(self, dt_bias: nnx.Param[jax.Array]) -> None:
        self.dt_bias = dt_bias


class ChannelDeltaNet(nnx.Module):
    """See `ChannelDeltaPlan`. Decays and rates are float32."""

    def __init__(
        self, config: ModelConfig, plan: ChannelDeltaPlan, options: ForwardOptions, *, dtype: jnp.dtype
    ) -> None:
        self.plan, self.options = plan, options
        devices, size, whole = model_parallel(options.mesh), config.hidden_size, (plan.inner, AS_THEY_ARE)
        mixed = ("query", "key", "value")
        self.parts = merged(devices, {**dict.fromkeys(mixed, whole), "rate": (plan.heads, AS_THEY_ARE)})
        self.mixed = merged(devices, dict.fromkeys(mixed, whole))
        taps = merged(devices, {f"{name}_taps": whole for name in mixed})
        linear = partial(Linear, bias=False, dtype=dtype, options=options)
        self.input = linear(size, self.parts.size, axes=("heads", "hidden"), rows=self.parts)
        self.low = merged(1, dict.fromkeys(("decay_down", "gate_down"), (plan.rank or 0, AS_THEY_ARE)))
        low = partial(linear, size, self.low.size, axes=(None, "hidden"), rows=self.low)
        self.down = low() if plan.rank else None
        up = partial(linear, plan.rank or size, plan.inner, axes=("heads", None if plan.rank else "hidden"))
        self.decay_up, self.gate_up = up(), up()
        convolution = partial(Convolution, bias=False, dtype=dtype, options=options)
        self.convolution = convolution(taps.size, plan.width, axis="heads", rows=taps)
        exact = partial(parameter, dtype=jnp.dtype("float32"), sharding=sharding(options.mesh, "heads"))
        self.decays, self.steps = _Rates(exact((plan.heads,))), _Steps(exact((plan.inner,)))
        self.norm = make_norm(plan.norm, plan.head_size, dtype=dtype, options=options)
        self.output = linear(plan.inner, size, axes=("hidden", "heads"))

    def __call__(self, x: jax.Array, states: States, context: LayerContext) -> tuple[jax.Array, States]:
        """Map `x` [T, D] to [T, D]; see `RecurrentBlock`."""
        plan, forward = self.plan, context.forward
        *parts, rate = self.parts.split(self.input(x, forward))
        before = read_states(states[:1], plan, context, x.dtype)[0]
        joined = self.mixed.join(parts)
        mixed, after, inputs = self.convolution(joined, before, states[2:3], context)
        activated = find_activation(plan.activation)(mixed)
        split = self.mixed.split(activated)
        query, key, value = (part.reshape(len(x), -1, plan.head_size) for part in split)
        down, gate = (x, x) if self.down is None else self.low.split(self.down(x, forward))
        decay, rate = self._decay(self.decay_up(down, forward)), jax.nn.sigmoid(rate.astype(jnp.float32))
        arrays = (unit(query) * plan.head_size**-0.5, unit(key), value, decay, rate)
        kept = (plan.states[1], *plan.draft_inputs[1:])
        own = (*states[1:2], *states[3:])
        out, held = by_heads(self._kernel, arrays, own, kept, context, self.options.mesh)
        gate = self.gate_up(gate, forward).astype(jnp.float32)
        out = self.norm(out.astype(jnp.float32)).reshape(gate.shape) * jax.nn.sigmoid(gate)
        new = write_states(states[:1], (after,), context)
        return self.output(out.astype(x.dtype), forward), (*new, *held[:1], *inputs, *held[1:])

    def _decay(self, given: jax.Array) -> jax.Array:
        """Logarithms of what is kept, float32 [T, V, H]."""
        wide = (given.astype(jnp.float32) + self.steps.dt_bias[...]).reshape(len(given), -1, self.plan.head_size)
        rates, lowest = jnp.exp(self.decays.a_log[...])[:, None], self.plan.lowest_decay
        return -rates * jax.nn.softplus(wide) if lowest is None else lowest * jax.nn.sigmoid(rates * wide)

    def _kernel(self, arrays: tuple[jax.Array, ...], states: LayerStates) -> tuple[jax.Array, States]:
        return gated_delta(GatedDeltaInputs(*arrays), states, platform=self.options.platform)
