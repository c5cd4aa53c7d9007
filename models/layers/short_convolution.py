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
from jaxllm.models.layers.states import read_states, take_in_drafts, write_states
from jaxllm.models.options import ForwardOptions
from jaxllm.models.recurrent_plan import ShortConvolutionPlan
from jaxllm.models.sharding import model_parallel, sharding
from jaxllm.pallas_kernels.causal_convolution import causal_convolution
from jaxllm.pallas_kernels.recurrence.loops import apart


class Convolution(nnx.Module):
    """`weight` [D, 1, X], as checkpoints have it, and perhaps a `bias` [D]; devices share the channels D.

    With a `dilation` its taps are so many tokens apart.
    """

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
        dilation: int = 1,
    ) -> None:
        self.platform, self.dilation = options.platform, dilation
        self.weight = parameter((channels, 1, width), dtype, sharding(options.mesh, axis, None, None), rows)
        self.bias = parameter((channels,), dtype, sharding(options.mesh, axis), rows) if bias else None

    def __call__(
        self, x: jax.Array, states: jax.Array, inputs: States, context: LayerContext
    ) -> tuple[jax.Array, jax.Array, States]:
        """See `convolve`."""
        bias, weight = None if self.bias is None else self.bias[...], self.weight[...][:, 0]
        if self.dilation > 1:
            between = jnp.zeros((len(weight), (weight.shape[1] - 1) * self.dilation + 1), weight.dtype)
            weight = between.at[:, :: self.dilation].set(weight)
        return convolve(x, states, weight, bias, inputs, context, self.platform)


def convolve(
    x: jax.Array,
    states: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    inputs: States,
    context: LayerContext,
    platform: str,
) -> tuple[jax.Array, jax.Array, States]:
    """See `causal_convolution`; `inputs` is the array for those of drafts, if there is one, and comes last."""
    ragged, rows = context.ragged, context.states
    states, inputs = take_in_drafts(states, x, inputs, context, platform)
    num_drafts = None if rows is None or rows.drafts is None else rows.drafts.num_drafts
    call = partial(causal_convolution, query_start=ragged.query_start, num_drafts=num_drafts)
    if len(states) > 1 or rows is None:
        out, after = call(x, states, weight, bias)
    else:
        # Of one row the slot is read and written where it lies.
        operands = (x, states, weight, bias)
        out, after = apart(call, *operands, is_any=ragged.num_requests > 0, platform=platform)
    return out, after, inputs


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
        (before,) = read_states(states[:1], self.plan, context, x.dtype)
        convolved, after, inputs = self.convolution(b * gated, before, states[1:], context)
        new = write_states(states[:1], (after,), context)
        return self.output(c * convolved, context.forward), (*new, *inputs)
