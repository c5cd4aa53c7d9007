"""A gated delta net: linear attention that corrects what it holds."""

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
from jaxllm.models.layers.norm import make_norm
from jaxllm.models.layers.parameter import AS_THEY_ARE, merged, parameter
from jaxllm.models.layers.short_convolution import Convolution
from jaxllm.models.layers.states import read_states, write_states
from jaxllm.models.options import ForwardOptions
from jaxllm.models.recurrent_plan import GatedDeltaPlan
from jaxllm.models.sharding import model_parallel, sharding
from jaxllm.pallas_kernels.gated_delta import GatedDeltaInputs, gated_delta
from jaxllm.pallas_kernels.recurrence import LayerStates

UNIT_EPS = 1e-6
"""Added to the squared length of queries and keys, by which they are divided."""


class GatedDeltaNet(nnx.Module):
    """See `GatedDeltaPlan`. Decays and rates are float32."""

    def __init__(self, config: ModelConfig, plan: GatedDeltaPlan, options: ForwardOptions, *, dtype: jnp.dtype) -> None:
        self.plan, self.options = plan, options
        devices, size = model_parallel(options.mesh), config.hidden_size
        keys, values, heads = ((rows, AS_THEY_ARE) for rows in (plan.keys, plan.values, plan.value_heads))
        self.mixed = merged(devices, {"query": keys, "key": keys, "value": values})
        self.gates = merged(devices, {"gate": values, "rate": heads, "decay": heads})
        taps = merged(devices, {"query_taps": keys, "key_taps": keys, "value_taps": values})
        linear = partial(Linear, bias=False, dtype=dtype, options=options)
        self.input = linear(size, self.mixed.size, axes=("heads", "hidden"), rows=self.mixed)
        self.gating = linear(size, self.gates.size, axes=("heads", "hidden"), rows=self.gates)
        convolution = partial(Convolution, bias=False, dtype=dtype, options=options)
        self.convolution = convolution(taps.size, plan.width, axis="heads", rows=taps)
        by_head = sharding(options.mesh, "heads")
        self.a_log, self.dt_bias = (parameter((plan.value_heads,), jnp.dtype("float32"), by_head) for _ in range(2))
        self.norm = make_norm(plan.norm, plan.value_size, dtype=dtype, options=options)
        self.output = linear(plan.values, size, axes=("hidden", "heads"))

    def __call__(self, x: jax.Array, states: States, context: LayerContext) -> tuple[jax.Array, States]:
        """Map `x` [T, D] to [T, D]; see `RecurrentBlock`."""
        plan, forward = self.plan, context.forward
        gate, rate, decay = self.gates.split(self.gating(x, forward))
        before = read_states(states[:1], plan, context, x.dtype)[0]
        mixed, after, inputs = self.convolution(self.input(x, forward), before, states[2:3], context)
        query, key, value = self._heads(find_activation(plan.activation)(mixed))
        decay = -jnp.exp(self.a_log[...]) * jax.nn.softplus(decay.astype(jnp.float32) + self.dt_bias[...])
        rate = jax.nn.sigmoid(rate.astype(jnp.float32))
        rate = rate if plan.rate_scale == 1.0 else rate * plan.rate_scale
        arrays = (query, key, value, decay, rate)
        kept = (plan.states[1], *plan.draft_inputs[1:])
        own = (*states[1:2], *states[3:])
        out, held = by_heads(self._kernel, arrays, own, kept, context, self.options.mesh)
        activation = jax.nn.silu if plan.gate_activation == "silu" else jax.nn.sigmoid
        out = self.norm(out).reshape(gate.shape) * activation(gate.astype(jnp.float32))
        new = write_states(states[:1], (after,), context)
        return self.output(out.astype(x.dtype), forward), (*new, *held[:1], *inputs, *held[1:])

    def _kernel(self, arrays: tuple[jax.Array, ...], states: LayerStates) -> tuple[jax.Array, States]:
        return gated_delta(GatedDeltaInputs(*arrays), states, platform=self.options.platform)

    def _heads(self, mixed: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Queries and keys [T, K, H], of length 1 but for the scale of queries, and values [T, V, E]."""
        plan = self.plan
        sizes = (plan.key_size, plan.key_size, plan.value_size)
        parts = zip(self.mixed.split(mixed), sizes, strict=True)
        query, key, value = (part.reshape(len(part), -1, size) for part, size in parts)
        return unit(query) * plan.key_size**-0.5, unit(key), value


def unit(x: jax.Array) -> jax.Array:
    """`x` [..., H] divided by its length, float32."""
    wide = x.astype(jnp.float32)
    return wide * lax.rsqrt((wide * wide).sum(axis=-1, keepdims=True) + UNIT_EPS)
