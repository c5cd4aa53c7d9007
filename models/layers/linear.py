"""Linear layers."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.layers.parameter import AS_THEY_ARE, LayerOf, Merged, Rows, parameter
from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import constrain, model_parallel, sharding
from jaxllm.pallas_kernels.linear import NOTHING, Fused, Weight, WeightLayout, choose_layout, linear


def weight_of(variable: Any, layout: WeightLayout) -> Weight:
    """The value of a matrix's variable as an operand."""
    value = variable.get_raw_value()
    return Weight(layout, value.stack, value.layer) if isinstance(value, LayerOf) else Weight(layout, value)


class Linear(nnx.Module):
    """`weight` [out, in] and, if asked for, `bias` [out]. Accumulates in float32, returns the type of its input.

    `axes` are the logical names of (out, in), see `jaxllm.models.sharding`. Where `in` is split over devices their
    partial sums are added up in the type of the input, half the traffic of float32 for bfloat16.
    """

    def __init__(
        self,
        in_size: int,
        out_size: int,
        *,
        bias: bool,
        dtype: jnp.dtype,
        axes: tuple[str | None, str | None],
        options: ForwardOptions,
        rows: Rows | Merged = AS_THEY_ARE,
    ) -> None:
        out_axis, _ = axes
        self.layout = choose_layout((out_size, in_size), dtype, native=options.native_matmul)
        self.weight = parameter(self.layout.shape, dtype, sharding(options.mesh, *axes), rows, self.layout)
        self.bias = parameter((out_size,), dtype, sharding(options.mesh, out_axis), rows) if bias else None
        self.axes, self.platform, self.mesh = axes, options.platform, options.mesh

    @property
    def matrix(self) -> Weight:
        """The weight as an operand."""
        return weight_of(self.weight, self.layout)

    def __call__(self, x: jax.Array, num_rows: jax.Array | None = None, fused: Fused = NOTHING) -> jax.Array:
        """Map [T, in], of which the first `num_rows` (int32 []) count, to [T, out]."""
        out_axis, in_axis = self.axes
        partial = model_parallel(self.mesh) > 1 and sharding(self.mesh, in_axis) != sharding(self.mesh, None)
        # What is added comes behind the sum over devices, and behind the bias.
        last = fused.residual if self.mesh is not None or self.bias is not None else None
        if last is not None:
            fused = replace(fused, residual=None)
        # Where XLA calls a library for the product, a float32 result is written, and read again to be rounded.
        rounds = partial or (self.platform == "gpu" and self.bias is None)
        kind = x.dtype if rounds else jnp.float32
        out = linear(x, self.matrix, num_rows, fused, out_dtype=kind, platform=self.platform)
        out = constrain(out, self.mesh, None, out_axis)
        if self.bias is not None:
            out = out + self.bias[...].astype(out.dtype)
        out = out.astype(x.dtype)
        return out if last is None else out + last
