"""The call of the kernel in `kernel`."""

from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp

from jaxllm.pallas_kernels import linear
from jaxllm.pallas_kernels.cpu_common.targets import Target, provide
from jaxllm.pallas_kernels.linear import NOTHING, Fused
from jaxllm.pallas_kernels.linear.cpu import BLOCK
from jaxllm.pallas_kernels.linear.cpu.form import WEIGHT_BYTES
from jaxllm.pallas_kernels.low_rank.operands import LowRank, Outputs, TokenSlots


def can_add(in_size: int, outputs: Outputs, dtype: str) -> bool:
    """Whether the kernel can: rows and parts of whole vectors, on one device, of a type (NumPy's name) it reads."""
    sizes = (in_size, *outputs.sizes)
    return dtype in WEIGHT_BYTES and outputs.blocks == 1 and not any(size % BLOCK for size in sizes)


def low_rank_target(dtype: str, *, is_narrow: bool) -> Target:
    """The kernel for matrices of a type (NumPy's name), and for activations that are bfloat16 if `is_narrow`."""
    rows = Path(linear.__file__).parent / "cpu"
    name = f"jaxllm_low_rank_{dtype}{'_narrow' if is_narrow else ''}"
    return Target(name, partial(_build, dtype, is_narrow), Path(__file__).parent, (rows,))


def _build(dtype: str, is_narrow: bool) -> bytes:
    from jaxllm.pallas_kernels.cpu_common.build import build
    from jaxllm.pallas_kernels.low_rank.cpu.kernel import make_kernel

    return build(make_kernel(dtype, WEIGHT_BYTES[dtype], is_narrow=is_narrow))


def cpu_add_low_rank(
    base: jax.Array,
    x: jax.Array,
    matrices: LowRank,
    tokens: TokenSlots,
    fused: Fused = NOTHING,
    *,
    is_narrow: bool = False,
) -> jax.Array:
    """See `add_low_rank`. What `down` makes of a row stays float32, where XLA's product rounds it to the type of `x`.

    `base` is overwritten, if nothing else reads it. Rows of tokens without an adapter are not even read. With
    `is_narrow`, which takes AVX512-BF16, bfloat16 is read and written as it is, and a sum rounded once. Raises
    `NotImplementedError` for what `can_add` rejects: 'xla' takes everything.
    """
    down, up = (array if array.ndim == 4 else array[None] for array in (matrices.down, matrices.up))
    depth, dtype = down.shape[-1], down.dtype.name
    if not can_add(depth, matrices.outputs, dtype):
        raise NotImplementedError(f"low-rank products of {dtype} {down.shape} x {up.shape}: use 'xla'")
    is_narrow = is_narrow and x.dtype == jnp.bfloat16
    target = low_rank_target(dtype, is_narrow=is_narrow)
    provide(target)
    adds_to_narrow = is_narrow and base.dtype == jnp.bfloat16
    kind = base.dtype if adds_to_narrow else jnp.dtype(jnp.float32)
    norm, none = fused.norm, jnp.zeros(0, jnp.float32)
    layer = jnp.asarray(0 if matrices.layer is None else matrices.layer, jnp.int32)
    added: jax.Array = jax.ffi.ffi_call(
        target.name, jax.ShapeDtypeStruct(base.shape, kind), input_output_aliases={0: 0}
    )(
        base.astype(kind),
        x if is_narrow else x.astype(jnp.float32),
        down,
        up,
        tokens.slots,
        tokens.num_blocks.reshape(1),
        layer.reshape(1),
        jnp.asarray(matrices.outputs.sizes, jnp.int32),
        none if norm is None else norm.weight.astype(jnp.float32),
        jnp.full(1, 0.0 if norm is None else norm.epsilon, jnp.float32),
        jnp.full(1, adds_to_narrow, jnp.int32),
    )
    return added.astype(base.dtype)
