"""The call of the kernel in `kernel`."""

from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxllm.pallas_kernels import linear
from jaxllm.pallas_kernels.cpu_common.targets import Target, provide
from jaxllm.pallas_kernels.linear import Weight
from jaxllm.pallas_kernels.linear.cpu import BLOCK
from jaxllm.pallas_kernels.linear.cpu.form import Form
from jaxllm.pallas_kernels.linear.cpu.packed import Packed


def grouped_target(form: Form) -> Target:
    """The kernel of a form."""
    tiles = Path(linear.__file__).parent / "cpu"
    return Target(f"jaxllm_grouped_{form.name}", partial(_build, form), Path(__file__).parent, (tiles,))


def _build(form: Form) -> bytes:
    from jaxllm.pallas_kernels.cpu_common.build import build
    from jaxllm.pallas_kernels.grouped_matmul.cpu.kernel import make_kernel

    return build(make_kernel(form))


def packed_grouped_matmul(
    x: jax.Array, weight: Weight, sizes: jax.Array, out_dtype: DTypeLike = jnp.float32
) -> jax.Array:
    """See `grouped_matmul`; padding is zero. A row's result depends on the row and its matrix alone.

    Only matrices of groups that have rows are read.
    """
    assert isinstance(weight.layout, Packed)
    form = weight.layout.form(weight.array.dtype.name)
    target = grouped_target(form)
    provide(target)
    several = weight.array if weight.array.ndim == 4 else weight.array[None]
    is_narrow = form.is_native and jnp.dtype(out_dtype) == jnp.bfloat16
    layer, kind = 0 if weight.layer is None else weight.layer, jnp.bfloat16 if is_narrow else jnp.float32
    groups, rows = len(sizes), x.shape[0]
    out_size = several.shape[1] // groups * BLOCK
    # Work of the kernel's own: of each group that has rows its number, its first row, its first item.
    shapes = [jax.ShapeDtypeStruct((rows, out_size), kind), jax.ShapeDtypeStruct((groups + 1, 3), jnp.int32)]
    y, _ = jax.ffi.ffi_call(target.name, shapes)(
        x.astype(jnp.bfloat16 if form.is_native else jnp.float32),
        several,
        sizes.astype(jnp.int32),
        jnp.stack([jnp.int32(layer), jnp.int32(is_narrow)]),
    )
    return y.astype(out_dtype)
