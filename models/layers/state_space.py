"""A Mamba-2 mixer."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from jaxllm.models.cache import States
from jaxllm.models.config import ModelConfig
from jaxllm.models.forward_context import LayerContext
from jaxllm.models.layers.activation import find_activation
from jaxllm.models.layers.by_heads import by_heads
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.parameter import AS_THEY_ARE, merged, parameter
from jaxllm.models.layers.short_convolution import Convolution
from jaxllm.models.layers.states import read_states, write_states
from jaxllm.models.options import ForwardOptions
from jaxllm.models.recurrent_plan import StateSpacePlan
from jaxllm.models.sharding import MODEL, model_parallel, sharding
from jaxllm.pallas_kernels.recurrence import LayerStates
from jaxllm.pallas_kernels.row_sum import rounded, sum_of_squares
from jaxllm.pallas_kernels.state_space import StateSpaceInputs, state_space


class StateSpaceMixer(nnx.Module):
    """See `StateSpacePlan`. Step sizes and decays are float32. Devices share heads; B and C are on all of them."""

    def __init__(self, config: ModelConfig, plan: StateSpacePlan, options: ForwardOptions, *, dtype: jnp.dtype) -> None:
        self.plan, self.options = plan, options
        size = config.hidden_size
        inner, heads, shared = ((rows, AS_THEY_ARE) for rows in (plan.inner, plan.heads, plan.shared))
        self.own = merged(model_parallel(options.mesh), {"x": inner, "gate": inner, "step": heads})
        self.shared = merged(1, {"write": shared, "read": shared})
        taps = merged(1, {"write_taps": shared, "read_taps": shared})
        linear = partial(Linear, bias=plan.bias, dtype=dtype, options=options)
        self.input = linear(size, self.own.size, axes=("heads", "hidden"), rows=self.own)
        self.shared_input = linear(size, self.shared.size, axes=(None, "hidden"), rows=self.shared)
        convolution = partial(Convolution, bias=plan.convolution_bias, dtype=dtype, options=options)
        self.x_taps = convolution(plan.inner, plan.width, axis="heads")
        self.shared_taps = convolution(taps.size, plan.width, axis=None, rows=taps)
        by_head = sharding(options.mesh, "heads")
        exact = partial(parameter, (plan.heads,), jnp.dtype("float32"), by_head)
        self.a_log, self.dt_bias, self.skip = exact(), exact(), exact()
        self.norm = GatedGroupNorm(plan, options, dtype=dtype)
        self.output = linear(plan.inner, size, axes=("hidden", "heads"))

    def __call__(self, x: jax.Array, states: States, context: LayerContext) -> tuple[jax.Array, States]:
        """Map `x` [T, D] to [T, D]; see `RecurrentBlock`."""
        plan, forward = self.plan, context.forward
        own, gate, step = self._scaled(self.own.split(self.input(x, forward)), (1, 0, 4))
        before = read_states(states[:2], plan, context, x.dtype)
        own, after_own, own_inputs = self.x_taps(own, before[0], states[3:4], context)
        shared = self.shared_input(x, forward)
        if plan.multipliers[2:4] != (1.0, 1.0):
            shared = jnp.concatenate(self._scaled(self.shared.split(shared), (2, 3)), axis=-1)
        shared, after_shared, shared_inputs = self.shared_taps(shared, before[1], states[4:5], context)
        own, shared = (find_activation(plan.activation)(each) for each in (own, shared))
        own = own.reshape(len(x), -1, plan.head_size)
        write, read = (each.reshape(len(x), plan.groups, -1) for each in self.shared.split(shared))
        rate = jnp.clip(jax.nn.softplus(step.astype(jnp.float32) + self.dt_bias[...]), *plan.limits)
        arrays = (own, rate, rate * -jnp.exp(self.a_log[...]))
        kept, mesh = (plan.states[2], *plan.draft_inputs[2:]), self.options.mesh
        held = (*states[2:3], *states[5:])
        out, held = by_heads(self._kernel, arrays, held, kept, context, mesh, shared=(write, read))
        out = out + own.astype(jnp.float32) * self.skip[...][:, None]
        out = self.norm(out.reshape(gate.shape), gate).astype(x.dtype)
        new = write_states(states[:2], (after_own, after_shared), context)
        return self.output(out, forward), (*new, *held[:1], *own_inputs, *shared_inputs, *held[1:])

    def _scaled(self, parts: tuple[jax.Array, ...], places: tuple[int, ...]) -> tuple[jax.Array, ...]:
        """Parts of a product, each times one of the plan's multipliers."""
        factors = [self.plan.multipliers[place] for place in places]
        return tuple(part if by == 1.0 else part * by for part, by in zip(parts, factors, strict=True))

    def _kernel(self, arrays: tuple[jax.Array, ...], states: LayerStates) -> tuple[jax.Array, States]:
        """`state_space` of the heads of one device, with the groups of these."""
        own, rate, decay, write, read = arrays
        heads, of_group = own.shape[1], self.plan.heads // self.plan.groups
        if heads < self.plan.heads:
            first = lax.axis_index(MODEL) * heads // of_group
            groups = partial(lax.dynamic_slice_in_dim, start_index=first, slice_size=max(1, heads // of_group), axis=1)
            write, read = groups(write), groups(read)
        inputs = StateSpaceInputs(own, rate, decay, write, read)
        return state_space(inputs, states, platform=self.options.platform)


class GatedGroupNorm(nnx.Module):
    """An RMS norm of `x * silu(gate)` in groups, which all have their own weights; see `StateSpacePlan` for others."""

    def __init__(self, plan: StateSpacePlan, options: ForwardOptions, *, dtype: jnp.dtype) -> None:
        self.plan = plan
        has_weight = plan.norm is not None
        self.weight = parameter((plan.inner,), dtype, sharding(options.mesh, "heads")) if has_weight else None

    def __call__(self, x: jax.Array, gate: jax.Array) -> jax.Array:
        """Float32 [T, I] from `x` float32 [T, I] and `gate` [T, I]."""
        opened = jax.nn.silu(gate.astype(jnp.float32))
        return self._normed(x) * opened if self.plan.norm_is_first else self._normed(x * opened)

    def _normed(self, x: jax.Array) -> jax.Array:
        if self.plan.norm is None or self.weight is None:
            return x
        grouped = x.reshape(len(x), self.plan.groups, -1)
        mean_square = rounded(sum_of_squares(grouped) / grouped.shape[-1])
        grouped = grouped * lax.rsqrt(mean_square + self.plan.norm.eps)
        return grouped.reshape(x.shape) * self.weight[...].astype(jnp.float32)
