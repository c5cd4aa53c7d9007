"""xLSTM's matrix memory."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.cache import States
from jaxllm.models.config import ModelConfig
from jaxllm.models.forward_context import LayerContext
from jaxllm.models.layers.by_heads import by_heads
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.norm import make_norm
from jaxllm.models.layers.parameter import AS_THEY_ARE, merged
from jaxllm.models.matrix_memory_plan import MatrixMemoryPlan
from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import model_parallel
from jaxllm.pallas_kernels.matrix_memory import MatrixMemoryInputs, matrix_memory
from jaxllm.pallas_kernels.recurrence import LayerStates


class MatrixMemory(nnx.Module):
    """See `MatrixMemoryPlan`. Gates are float32. Devices share the heads."""

    def __init__(
        self, config: ModelConfig, plan: MatrixMemoryPlan, options: ForwardOptions, *, dtype: jnp.dtype
    ) -> None:
        self.plan, self.options = plan, options
        size, devices = config.hidden_size, model_parallel(options.mesh)
        keys, values, each = (plan.keys, AS_THEY_ARE), (plan.values, AS_THEY_ARE), (plan.heads, AS_THEY_ARE)
        self.parts = merged(devices, {"query": keys, "key": keys, "value": values, "output_gate": values})
        self.gates = merged(devices, {"input_gate": each, "forget_gate": each})
        linear = partial(Linear, dtype=dtype, options=options)
        wide = partial(linear, size, axes=("heads", "hidden"))
        self.input = wide(self.parts.size, bias=False, rows=self.parts)
        self.gate = wide(self.gates.size, bias=True, rows=self.gates)
        shape = (plan.heads, plan.value_size)
        self.norm = make_norm(plan.norm, *shape, dtype=dtype, options=options, axes=("heads", None))
        self.output = linear(plan.values, size, bias=False, axes=("hidden", "heads"))

    def __call__(self, x: jax.Array, states: States, context: LayerContext) -> tuple[jax.Array, States]:
        """Map `x` [T, D] to [T, D]; see `RecurrentBlock`."""
        plan, forward = self.plan, context.forward
        *parts, gate = self.parts.split(self.input(x, forward))
        query, key, value = (part.reshape(len(x), plan.heads, -1) for part in parts)
        taken, kept = (self._capped(part) for part in self.gates.split(self.gate(x, forward)))
        query = query * jnp.asarray(plan.key_size**-0.5, query.dtype)
        arrays = (query, key, value, taken, jax.nn.log_sigmoid(kept))
        held = (*plan.states, *plan.draft_inputs)
        out, states = by_heads(self._kernel, arrays, states, held, context, self.options.mesh)
        normed = self.norm(out.astype(x.dtype)).reshape(gate.shape)
        return self.output(jax.nn.sigmoid(gate) * normed, forward), states

    def _capped(self, gate: jax.Array) -> jax.Array:
        """A gate [T, N], in float32."""
        wide, cap = gate.astype(jnp.float32), self.plan.gate_cap
        return cap * jnp.tanh(wide / cap)

    def _kernel(self, arrays: tuple[jax.Array, ...], states: LayerStates) -> tuple[jax.Array, States]:
        inputs = MatrixMemoryInputs(*arrays)
        return matrix_memory(inputs, states, eps=self.plan.eps, platform=self.options.platform)
