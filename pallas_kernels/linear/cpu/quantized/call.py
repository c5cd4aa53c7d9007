"""The call of the kernel in `kernel`."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxllm.pallas_kernels.cpu_common.targets import Target, provide
from jaxllm.pallas_kernels.linear.cpu import BLOCK
from jaxllm.pallas_kernels.linear.cpu.quantized.form import SCALE_KINDS, Form, integer_code
from jaxllm.pallas_kernels.linear.fused import NOTHING, Fused
from jaxllm.pallas_kernels.linear.weight_type import WeightType

LARGEST_SEGMENT = 1024
"""Inputs of a chain of products of float32; longer sums are added up of several, which is more exact."""


def quantized_target(form: Form) -> Target:
    """The kernel of a form."""
    here = Path(__file__).parent
    return Target(f"jaxllm_{form.name}", partial(_build, form), here, (here.parent,))


def _build(form: Form) -> bytes:
    from jaxllm.pallas_kernels.cpu_common.build import build
    from jaxllm.pallas_kernels.linear.cpu.quantized.kernel import make_kernel

    return build(make_kernel(form))


@dataclass(frozen=True)
class Operand:
    """A packed quantized matrix, or those of several layers or experts."""

    kind: WeightType
    form: Form
    values: jax.Array
    """[L, B, in / I, step], or without L."""
    scales: jax.Array
    """[L, B, G, 16]."""
    offsets: jax.Array | None = None
    layer: jax.Array | int | None = None

    @property
    def in_size(self) -> int:
        """Inputs."""
        return self.values.shape[-2] * self.form.inputs_per_step


def quantized_matmul(
    x: jax.Array,
    operand: Operand,
    sizes: jax.Array,
    fused: Fused = NOTHING,
    input_scale: jax.Array | None = None,
) -> jax.Array:
    """`x` float32 [T, in] times packed matrices: `sizes` int32 [E] rows with the first, the second, ... of a layer.

    Returns float32 [T, 16 B / E]; rows after those that `sizes` count are zero. A residual is float32 of that shape.
    `input_scale` is a number by which activations are divided where that is static.
    """
    form, depth = operand.form, operand.in_size
    target = quantized_target(form)
    provide(target)
    has_layers = operand.layer is not None
    values, scales, offsets = (
        None if array is None else array if has_layers else array[None]
        for array in (operand.values, operand.scales, operand.offsets)
    )
    assert values is not None
    assert scales is not None
    group = operand.kind.group or depth
    segment = group if form.digits else min(group, LARGEST_SEGMENT)
    code, tokens, norm = integer_code(operand.kind), x.shape[0], fused.norm
    bias, unit = (code.bias, code.unit) if code and form.digits else (0, 1.0)
    scale_kind = SCALE_KINDS.index(operand.kind.scales)
    layer = jnp.asarray(operand.layer if has_layers else 0, jnp.int32)
    ints = jnp.stack([layer, *(jnp.int32(number) for number in (depth, group, segment, bias, scale_kind))])
    epsilon = 0.0 if norm is None else norm.epsilon
    static = jnp.float32(0) if input_scale is None else input_scale.astype(jnp.float32).reshape(())
    none = jnp.zeros(0, jnp.float32)
    words = -(-depth // segment) * (2 + form.digits)
    prepared = (tokens, form.digits, depth) if form.digits else (tokens, 1, depth)
    results = [
        jax.ShapeDtypeStruct((tokens, values.shape[1] // len(sizes) * BLOCK), jnp.float32),
        jax.ShapeDtypeStruct(prepared, jnp.int8 if form.digits else jnp.float32),
        jax.ShapeDtypeStruct((tokens, words), jnp.float32),
        jax.ShapeDtypeStruct((len(sizes) + 1, 3), jnp.int32),
    ]
    y, *_ = jax.ffi.ffi_call(target.name, results)(
        x,
        values,
        scales,
        jnp.zeros((0, 0, 0, 0), scales.dtype) if offsets is None else offsets,
        sizes.astype(jnp.int32),
        ints,
        jnp.stack([jnp.float32(epsilon), jnp.float32(unit), static]),
        none if norm is None else norm.weight.astype(jnp.float32),
        none.reshape(0, 0) if fused.residual is None else fused.residual,
        _table(operand.kind, form),
    )
    return y


def _table(kind: WeightType, form: Form) -> np.ndarray:
    """64 bytes: what codes are looked up in."""
    if not form.digits:
        return np.asarray(kind.code or (0,) * 16, np.float32).view(np.uint8)
    code = integer_code(kind)
    assert code is not None
    return np.tile(np.asarray(code.table, np.uint8), 4)
