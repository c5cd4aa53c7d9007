"""Matrix products with weights kept as checkpoints have them, (out, in), or in panels for CPUs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from jaxllm.models.layers.activation import Gate
from jaxllm.models.layers.norm import RMSNorm
from jaxllm.models.layers.parameter import AS_THEY_ARE, LayerOf, Merged, Rows, parameter
from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import constrain, model_parallel, sharding
from jaxllm.pallas_kernels.linear.cpu import linear as products

WEIGHT_LEFT_UP_TO = 64
"""Rows of activations up to which XLA's CPU matmul is faster with the weight as its left operand."""

Before = Callable[[jax.Array], jax.Array]
"""What is done to rows before a product."""


@dataclass(frozen=True)
class Panels:
    """A weight [out, in] in panels: `array` [P, in, 16], or [L, P, in, 16] for all layers, of which `layer` counts."""

    array: jax.Array
    layer: jax.Array | int
    out_size: int


Weight = jax.Array | Panels


def in_panels(options: ForwardOptions, in_size: int, dtype: jnp.dtype) -> bool:
    """Whether a weight is kept in panels."""
    return options.native_matmul and products.fits(in_size, jnp.dtype(dtype).name)


def weight_of(variable: Any) -> Weight:
    """The value of a matrix's variable."""
    value, about = variable.get_raw_value(), variable.get_metadata()
    if not about.get("in_panels"):
        return cast(jax.Array, value)
    out_size, _ = about["tensor_shape"]
    return Panels(value.stack, value.layer, out_size) if isinstance(value, LayerOf) else Panels(value, 0, out_size)


def matmul(
    x: jax.Array,
    weight: Weight,
    options: ForwardOptions,
    out_dtype: jnp.dtype | None = None,
    num_rows: jax.Array | None = None,
    *,
    before: Before | None = None,
    plus: jax.Array | None = None,
) -> jax.Array:
    """`before(x) [T, in]` times `weight [out, in]` transposed, and `plus` [T, out]: [T, out] in `out_dtype`.

    That is float32 by default. Rows from `num_rows` (int32 []) on are padding, whose products nobody needs.
    """
    kind = jnp.dtype(jnp.float32 if out_dtype is None else out_dtype)
    if isinstance(weight, Panels):
        return _native(x, weight, num_rows, before, plus).astype(kind)
    x = x if before is None else before(x)
    if options.platform == "cpu" and x.shape[0] <= WEIGHT_LEFT_UP_TO:
        out = _weight_left(x, weight, kind)
    else:
        out = lax.dot_general(x, weight, (((1,), (1,)), ((), ())), preferred_element_type=kind)
    return out if plus is None else out.astype(plus.dtype) + plus


def _native(
    x: jax.Array,
    weight: Panels,
    num_rows: jax.Array | None,
    before: Before | None,
    plus: jax.Array | None,
) -> jax.Array:
    """The same by the kernel, with as much of what is around it as the kernel can take over."""
    norm = None
    if isinstance(before, RMSNorm):
        norm = products.Norm(before.weight[...].astype(jnp.float32), before.eps)
    is_gated = isinstance(before, Gate) and before.is_plain_silu
    if before is not None and norm is None and not is_gated:
        x = before(x)
    is_whole = weight.out_size == weight.array.shape[-3] * weight.array.shape[-1]
    wide = None if plus is None or not is_whole else plus.astype(jnp.float32)
    out = products.matmul(
        x.astype(jnp.float32), weight.array, num_rows, weight.layer, norm=norm, is_gated=is_gated, plus=wide
    )
    if is_whole:
        return out
    out = out[:, : weight.out_size]
    return out if plus is None else out + plus


def _weight_left(x: jax.Array, weight: jax.Array, kind: jnp.dtype) -> jax.Array:
    """The same with the weight as the left operand and the few activations, transposed, as the right one.

    XLA's CPU matmul is then up to twice as fast: 0.95 x for 1 row, 2.1 x for 4, 1.7 x for 8, 1.5 x for 32, 1.1 x for
    64, but 0.96 x for 128 and 0.88 x for 256 (300 MB of weights in float32, two cores with AVX-512). The barriers keep
    XLA from folding the transposes back into the product, which would exchange the operands again.
    """
    columns = lax.optimization_barrier(x.T)
    return lax.optimization_barrier(
        lax.dot_general(weight, columns, (((1,), (0,)), ((), ())), preferred_element_type=kind)
    ).T


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
        self.weight = parameter(
            (out_size, in_size),
            dtype,
            sharding(options.mesh, *axes),
            rows,
            in_panels=in_panels(options, in_size, dtype),
        )
        self.bias = parameter((out_size,), dtype, sharding(options.mesh, out_axis), rows) if bias else None
        self.axes, self.options, self.mesh = axes, options, options.mesh

    def __call__(
        self,
        x: jax.Array,
        num_rows: jax.Array | None = None,
        *,
        before: Before | None = None,
        plus: jax.Array | None = None,
    ) -> jax.Array:
        """Map `before(x)` [T, in], of which the first `num_rows` count, to [T, out], and add `plus` [T, out]."""
        out_axis, in_axis = self.axes
        partial = model_parallel(self.mesh) > 1 and sharding(self.mesh, in_axis) != sharding(self.mesh, None)
        kind = x.dtype if partial else None
        is_native = self.mesh is None and self.bias is None
        out = matmul(
            x,
            weight_of(self.weight),
            self.options,
            kind,
            num_rows,
            before=before,
            plus=plus if is_native else None,
        )
        out = constrain(out, self.mesh, None, out_axis)
        if self.bias is not None:
            out = out + self.bias[...].astype(out.dtype)
        out = out.astype(x.dtype)
        return out if plus is None or is_native else out + plus
