"""Linear layers."""

from dataclasses import replace
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from jaxllm.models.forward_context import ForwardContext
from jaxllm.models.layers.matrix import Matrix
from jaxllm.models.layers.parameter import AS_THEY_ARE, Merged, Rows, parameter
from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import constrain, devices_along, model_parallel, sharding, token_axis
from jaxllm.pallas_kernels.linear import NOTHING, Fused, choose_layout

if TYPE_CHECKING:
    from jaxllm.models.layers.adapter_slots import AdapterSlots
    from jaxllm.pallas_kernels.linear.quantized import QuantizedLayout
    from jaxllm.pallas_kernels.linear.weight_type import WeightType


class Linear(Matrix):
    """`weight` [out, in] and, if asked for, `bias` [out]. Accumulates in float32, returns the type of its input.

    `axes` are the logical names of (out, in), see `jaxllm.models.sharding`. Where `in` is split over devices their
    partial sums are added up in the type of the input, half the traffic of float32 for bfloat16, and the result may be
    split by tokens, see `token_axis`.
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
        layout = choose_layout(
            (out_size, in_size), dtype, native=options.native_matmul, multiplies_pairs=options.multiplies_pairs
        )
        super().__init__(layout, dtype, axes, rows, options)
        self.bias = parameter((out_size,), dtype, sharding(options.mesh, out_axis), rows) if bias else None
        self.is_native, self.backend, self.is_packed = options.native_matmul, options.linear_backend, layout.is_packed
        self.multiplies_pairs = options.multiplies_pairs
        self.adapters: AdapterSlots | None = None
        self.takes_adapters = True

    def quantized_layout(self, kind: "WeightType") -> "QuantizedLayout":
        """See `Matrix`."""
        from jaxllm.pallas_kernels.linear.quantized_layouts import choose_quantized_layout

        out_size, in_size = self.layout.shape
        out_axis, in_axis = self.axes
        parts = devices_along(self.mesh, out_axis), devices_along(self.mesh, in_axis)
        return choose_quantized_layout(
            (out_size, in_size), kind, native=self.is_native, backend=self.backend, parts=parts
        )

    def __call__(self, x: jax.Array, context: ForwardContext, fused: Fused = NOTHING) -> jax.Array:
        """Map [T, in] to [T, out]."""
        out_axis, in_axis = self.axes
        partial = model_parallel(self.mesh) > 1 and sharding(self.mesh, in_axis) != sharding(self.mesh, None)
        # What is added comes after the sum over devices, and after the bias.
        slots = self.adapters if context.adapters is not None else None
        is_last = self.mesh is not None or self.bias is not None or (slots is not None and slots.scale is not None)
        last = fused.residual if is_last else None
        if last is not None:
            fused = replace(fused, residual=None)
        # Where a library or a kernel is called for the product, a float32 result is written, and read again to be
        # rounded. Adapters are added to it before. A kernel that adds to bfloat16 gets it rounded: to convert it would
        # take longer than to add. A sum with a residual is rounded once, at the end.
        is_whole = self.bias is None and (slots is None or (slots.takes_rounded and fused.residual is None))
        rounds = partial or (is_whole and (self.is_packed or self.platform == "gpu"))
        kind = x.dtype if rounds else jnp.float32
        if not partial:
            # Tokens that are split are gathered first: left to itself, XLA makes a loop of a product of small parts.
            x = constrain(x, self.mesh, None, in_axis)
        out = self.product(x, context, fused, out_dtype=kind)
        out = constrain(out, self.mesh, None, out_axis)
        if slots is not None:
            assert context.adapters is not None
            out = slots.scaled(slots.add(out, x, context.adapters, fused), context.adapters)
            out = constrain(out, self.mesh, None, out_axis)
        if partial:
            out = constrain(out, self.mesh, token_axis(self.mesh, len(out)), out_axis)
        if slots is not None:
            assert context.adapters is not None
            out = slots.biased(out, None if self.bias is None else self.bias[...], context.adapters)
        elif self.bias is not None:
            out = out + self.bias[...].astype(out.dtype)
        out = out.astype(x.dtype)
        return out if last is None else out + last
