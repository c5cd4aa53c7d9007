"""Griffin's recurrent block: a linear recurrence by channel, whose gates are products of blocks of channels."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.cache import States
from jaxllm.models.channel_plan import RealGatedPlan
from jaxllm.models.config import ModelConfig
from jaxllm.models.forward_context import LayerContext
from jaxllm.models.layers.activation import find_activation
from jaxllm.models.layers.by_heads import by_heads
from jaxllm.models.layers.head_projection import head_products
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.parameter import AS_THEY_ARE, merged, parameter
from jaxllm.models.layers.short_convolution import Convolution
from jaxllm.models.layers.states import read_states, write_states
from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import model_parallel, sharding
from jaxllm.pallas_kernels.linear_recurrence import LinearRecurrenceInputs, linear_recurrence
from jaxllm.pallas_kernels.recurrence import LayerStates

FASTEST = 8.0
"""Factor on the softplus of a channel's parameter: a recurrent gate that is open takes the state to that power."""


class BlockGate(nnx.Module):
    """`sigmoid(x W + b)` of blocks: `weight` [B * size, size], rows are inputs, and `bias` [B * size].

    Devices share the blocks.
    """

    def __init__(self, blocks: int, size: int, options: ForwardOptions, *, dtype: jnp.dtype) -> None:
        self.shape, self.options = (blocks, size, size), options
        self.weight = parameter((blocks * size, size), dtype, sharding(options.mesh, "heads", "hidden"))
        self.bias = parameter((blocks * size,), dtype, sharding(options.mesh, "heads"))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map [T, B * size] to float32."""
        blocks, matrices = x.reshape(len(x), *self.shape[:2]), self.weight[...].reshape(self.shape)
        out = head_products(blocks, matrices, self.options, transposed=True)
        return jax.nn.sigmoid(out.reshape(x.shape) + self.bias[...].astype(jnp.float32))


class RealGatedBlock(nnx.Module):
    """See `RealGatedPlan`. Decays are float32. Devices share blocks of channels."""

    def __init__(self, config: ModelConfig, plan: RealGatedPlan, options: ForwardOptions, *, dtype: jnp.dtype) -> None:
        self.plan, self.options = plan, options
        size, channels = config.hidden_size, plan.channels
        self.parts = merged(model_parallel(options.mesh), dict.fromkeys(("x", "gate"), (channels, AS_THEY_ARE)))
        linear = partial(Linear, bias=True, dtype=dtype, options=options)
        self.input = linear(size, self.parts.size, axes=("heads", "hidden"), rows=self.parts)
        convolution = partial(Convolution, bias=True, dtype=dtype, options=options)
        self.convolution = convolution(channels, plan.width, axis="heads")
        gate = partial(BlockGate, plan.blocks, channels // plan.blocks, options, dtype=dtype)
        self.input_gate, self.recurrent_gate = gate(), gate()
        self.rate = parameter((channels,), jnp.dtype("float32"), sharding(options.mesh, "heads"))
        self.output = linear(channels, size, axes=("hidden", "heads"))

    def __call__(self, x: jax.Array, states: States, context: LayerContext) -> tuple[jax.Array, States]:
        """Map `x` [T, D] to [T, D]; see `RecurrentBlock`."""
        plan, forward = self.plan, context.forward
        own, gate = self.parts.split(self.input(x, forward))
        before = read_states(states[:1], plan, context, x.dtype)[0]
        own, after, inputs = self.convolution(own, before, states[2:3], context)
        log_decay = -FASTEST * self.recurrent_gate(own) * jax.nn.softplus(self.rate[...])
        # What is kept and what is taken in add up to one, in squares; a text's first token is taken in as it is.
        share = jnp.sqrt(-jnp.expm1(2.0 * log_decay))
        share = jnp.where(context.ragged.positions[:, None] == 0, 1.0, share)
        taken = own.astype(jnp.float32) * self.input_gate(own) * share
        out, held = by_heads(
            self._kernel,
            (jnp.exp(log_decay), taken),
            (*states[1:2], *states[3:]),
            (plan.states[1], *plan.draft_inputs[1:]),
            context,
            self.options.mesh,
        )
        new = write_states(states[:1], (after,), context)
        out = out.astype(x.dtype) * find_activation(plan.activation)(gate)
        return self.output(out, forward), (*new, *held[:1], *inputs, *held[1:])

    def _kernel(self, arrays: tuple[jax.Array, ...], states: LayerStates) -> tuple[jax.Array, States]:
        return linear_recurrence(LinearRecurrenceInputs(*arrays), states, platform=self.options.platform)
