"""LFM2's gated short convolution."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.cache import States
from jaxllm.models.config import ModelConfig
from jaxllm.models.forward_context import LayerContext
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.parameter import AS_THEY_ARE, Merged, Rows, merged, parameter
from jaxllm.models.layers.states import read_states, write_states
from jaxllm.models.options import ForwardOptions
from jaxllm.models.recurrent_plan import ShortConvolutionPlan
from jaxllm.models.sharding import model_parallel, sharding
from jaxllm.pallas_kernels.causal_convolution import causal_convolution


class Convolution(nnx.Module):
    """`weight` [D, 1, X], as checkpoints have it, and perhaps a `bias` [D]; devices share the channels D."""

    def __init__(
        self,
        channels: int,
        width: int,
        *,
        bias: bool,
        dtype: jnp.dtype,
        options: ForwardOptions,
        axis: str | None = "mlp",
        rows: Rows | Merged = AS_THEY_ARE,
    ) -> None:
        self.weight = parameter((channels, 1, width), dtype, sharding(options.mesh, axis, None, None), rows)
        self.bias = parameter((channels,), dtype, sharding(options.mesh, axis), rows) if bias else None

    def __call__(self, x: jax.Array, states: jax.Array, query_start: jax.Array) -> tuple[jax.Array, jax.Array]:
        """See `causal_convolution`."""
        bias = None if self.bias is None else self.bias[...]
        return causal_convolution(x, states, self.weight[...][:, 0], bias, query_start)


class ShortConvolution(nnx.Module):
    """See `ShortConvolutionPlan`."""

    def __init__(
        self, config: ModelConfig, plan: ShortConvolutionPlan, options: ForwardOptions, *, dtype: jnp.dtype
    ) -> None:
        self.plan = plan
        size, channels = config.hidden_size, plan.channels
        linear = partial(Linear, bias=plan.bias, dtype=dtype, options=options)
        self.parts = merged(model_parallel(options.mesh), {name: (channels, Rows()) for name in ("b", "c", "x")})
        self.input = linear(size, self.parts.size, axes=("mlp", "hidden"), rows=self.parts)
        self.convolution = Convolution(channels, plan.width, bias=plan.bias, dtype=dtype, options=options)
        self.output = linear(channels, size, axes=("hidden", "mlp"))

    def __call__(self, x: jax.Array, states: States, context: LayerContext) -> tuple[jax.Array, States]:
        """Map `x` [T, D] to [T, D]; see `RecurrentBlock`."""
        b, c, gated = self.parts.split(self.input(x, context.forward))
        (before,) = read_states(states, self.plan, context, x.dtype)
        convolved, after = self.convolution(b * gated, before, context.ragged.query_start)
        return self.output(c * convolved, context.forward), write_states(states, (after,), context)
