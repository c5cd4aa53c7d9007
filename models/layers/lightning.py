"""Lightning attention: linear attention with decays."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.cache import States
from jaxllm.models.config import ModelConfig
from jaxllm.models.forward_context import LayerContext
from jaxllm.models.layers.activation import find_activation
from jaxllm.models.layers.by_heads import by_heads
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.norm import make_norm
from jaxllm.models.layers.parameter import AS_THEY_ARE, merged, parameter
from jaxllm.models.options import ForwardOptions
from jaxllm.models.recurrent_plan import LightningPlan
from jaxllm.models.sharding import model_parallel, sharding
from jaxllm.pallas_kernels.recurrence import LayerStates
from jaxllm.pallas_kernels.state_space import StateSpaceInputs, state_space


class LightningAttention(nnx.Module):
    """See `LightningPlan`. It is a state space whose heads write values by keys, and read by queries.

    Decays are float32. Devices share the heads.
    """

    def __init__(self, config: ModelConfig, plan: LightningPlan, options: ForwardOptions, *, dtype: jnp.dtype) -> None:
        self.plan, self.options = plan, options
        size, whole = config.hidden_size, (plan.inner, AS_THEY_ARE)
        names = ("query", "key", "value", "gate")
        self.parts = merged(model_parallel(options.mesh), dict.fromkeys(names, whole))
        linear = partial(Linear, bias=False, dtype=dtype, options=options)
        self.input = linear(size, self.parts.size, axes=("heads", "hidden"), rows=self.parts)
        self.slopes = parameter((plan.heads,), jnp.dtype("float32"), sharding(options.mesh, "heads"))
        self.norm = make_norm(plan.norm, plan.inner, dtype=dtype, options=options, axes=("heads",))
        self.output = linear(plan.inner, size, axes=("hidden", "heads"))

    def __call__(self, x: jax.Array, states: States, context: LayerContext) -> tuple[jax.Array, States]:
        """Map `x` [T, D] to [T, D]; see `RecurrentBlock`."""
        plan, forward = self.plan, context.forward
        *parts, gate = self.parts.split(self.input(x, forward))
        activation = find_activation(plan.activation)
        query, key, value = (activation(part).reshape(len(x), -1, plan.head_size) for part in parts)
        decay = jnp.broadcast_to(-self.slopes[...], value.shape[:2])
        arrays = (value, jnp.ones_like(decay), decay, key, query)
        kept = (*plan.states, *plan.draft_inputs)
        out, held = by_heads(self._kernel, arrays, states, kept, context, self.options.mesh)
        out = self.norm(out.reshape(gate.shape).astype(x.dtype)) * jax.nn.sigmoid(gate)
        return self.output(out, forward), held

    def _kernel(self, arrays: tuple[jax.Array, ...], states: LayerStates) -> tuple[jax.Array, States]:
        """`state_space` of the heads of one device, each a group of its own."""
        return state_space(StateSpaceInputs(*arrays), states, platform=self.options.platform)
