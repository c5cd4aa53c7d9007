"""A Mamba mixer."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.cache import States
from jaxllm.models.config import ModelConfig
from jaxllm.models.forward_context import LayerContext
from jaxllm.models.layers.activation import find_activation
from jaxllm.models.layers.by_heads import by_heads
from jaxllm.models.layers.head_projection import HeadProjection
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.norm import make_norm
from jaxllm.models.layers.parameter import AS_THEY_ARE, merged, parameter
from jaxllm.models.layers.short_convolution import Convolution
from jaxllm.models.layers.states import read_states, write_states
from jaxllm.models.options import ForwardOptions
from jaxllm.models.recurrent_plan import SelectiveScanPlan
from jaxllm.models.sharding import model_parallel, sharding
from jaxllm.pallas_kernels.recurrence import LayerStates
from jaxllm.pallas_kernels.selective_scan import SelectiveScanInputs, selective_scan


class SelectiveScanMixer(nnx.Module):
    """See `SelectiveScanPlan`. Step sizes and decays are float32. Devices share channels."""

    def __init__(
        self, config: ModelConfig, plan: SelectiveScanPlan, options: ForwardOptions, *, dtype: jnp.dtype
    ) -> None:
        self.plan, self.options = plan, options
        size, channels = config.hidden_size, plan.channels
        whole = (channels, AS_THEY_ARE)
        self.parts = merged(model_parallel(options.mesh), {"x": whole, "gate": whole})
        linear = partial(Linear, dtype=dtype, options=options)
        self.input = linear(size, self.parts.size, bias=plan.bias, axes=("heads", "hidden"), rows=self.parts)
        convolution = partial(Convolution, bias=plan.convolution_bias, dtype=dtype, options=options)
        self.convolution = convolution(channels, plan.width, axis="heads")
        selected, heads = plan.rank + 2 * plan.state_size, plan.heads
        project = partial(HeadProjection, heads, dtype=dtype, options=options)
        self.selection: HeadProjection | Linear
        self.step: HeadProjection | Linear
        if heads == 1:
            self.selection = linear(channels, selected, bias=False, axes=("hidden", "heads"))
            self.step = linear(plan.rank, channels, bias=True, axes=("heads", "hidden"))
        else:
            self.selection, self.step = project(channels // heads, selected), project(plan.rank, channels // heads)
        norm = partial(make_norm, plan.norm, dtype=dtype, options=options)
        self.step_norm, self.write_norm, self.read_norm = norm(plan.rank), norm(plan.state_size), norm(plan.state_size)
        by_channel, exact = partial(sharding, options.mesh, "heads"), jnp.dtype("float32")
        self.a_log = parameter((channels, plan.state_size), exact, by_channel(None))
        self.skip = parameter((channels,), exact, by_channel())
        self.step_bias = None if heads == 1 else parameter((channels,), exact, by_channel())
        self.output = linear(channels, size, bias=plan.bias, axes=("hidden", "heads"))

    def __call__(self, x: jax.Array, states: States, context: LayerContext) -> tuple[jax.Array, States]:
        """Map `x` [T, D] to [T, D]; see `RecurrentBlock`."""
        plan, forward = self.plan, context.forward
        own, gate = self.parts.split(self.input(x, forward))
        before = read_states(states[:1], plan, context, x.dtype)[0]
        own, after, inputs = self.convolution(own, before, states[2:3], context)
        own = find_activation(plan.activation)(own)
        is_whole = plan.heads == 1
        selected = self.selection(own if is_whole else own.reshape(len(x), plan.heads, -1), forward)
        step, write, read = jnp.split(selected, (plan.rank, plan.rank + plan.state_size), axis=-1)
        step = self.step(self.step_norm(step), forward).reshape(own.shape).astype(jnp.float32)
        rate = jax.nn.softplus(step if self.step_bias is None else step + self.step_bias[...])
        wide, of_heads = own.astype(jnp.float32), (self.write_norm(write), self.read_norm(read))
        out, held = by_heads(
            self._kernel,
            (wide, rate, *(() if is_whole else of_heads)),
            (*states[1:2], *states[3:]),
            (plan.states[1], *plan.draft_inputs[1:]),
            context,
            self.options.mesh,
            shared=of_heads if is_whole else (),
            weights=(-jnp.exp(self.a_log[...]),),
        )
        out = (out + wide * self.skip[...]) * jax.nn.silu(gate.astype(jnp.float32))
        new = write_states(states[:1], (after,), context)
        return self.output(out.astype(x.dtype), forward), (*new, *held[:1], *inputs, *held[1:])

    def _kernel(self, arrays: tuple[jax.Array, ...], states: LayerStates) -> tuple[jax.Array, States]:
        return selective_scan(SelectiveScanInputs(*arrays), states, platform=self.options.platform)
