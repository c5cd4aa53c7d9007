"""Rows of activations, ordered by group, times the matrix of their group."""

from collections.abc import Mapping
from typing import Protocol

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxllm.pallas_kernels.grouped_matmul.cpu.packed import packed_grouped_matmul
from jaxllm.pallas_kernels.grouped_matmul.tpu.layout import Streamed, can_stream
from jaxllm.pallas_kernels.grouped_matmul.xla import active_groups, ragged_dot
from jaxllm.pallas_kernels.linear import RowMajor, Weight, WeightLayout, choose_layout


class Implementation(Protocol):
    """The protocol of every implementation: `grouped_matmul` without the choice of one."""

    def __call__(self, x: jax.Array, weight: Weight, sizes: jax.Array, out_dtype: DTypeLike = jnp.float32) -> jax.Array:
        """See `grouped_matmul`."""
        ...


def tpu_streamed(x: jax.Array, weight: Weight, sizes: jax.Array, out_dtype: DTypeLike = jnp.float32) -> jax.Array:
    """See `tpu.matmul`, which is imported here, so that other machines do not load its compiler."""
    from jaxllm.pallas_kernels.grouped_matmul.tpu.matmul import tpu_grouped_matmul

    return tpu_grouped_matmul(x, weight, sizes, out_dtype)


IMPLEMENTATIONS: Mapping[str, Implementation] = {
    "cpu": packed_grouped_matmul,
    "cpu_pairs": packed_grouped_matmul,
    "active_groups": active_groups,
    "ragged_dot": ragged_dot,
    "tpu": tpu_streamed,
}
"""`cpu` is a kernel compiled by Numba for packed weights, `cpu_pairs` one for processors that multiply bfloat16 as
it is; `active_groups` is a loop over groups, for CPUs without them; `ragged_dot` is XLA's own, which on CPU multiplies
with the matrices of all groups; `tpu` is a Pallas kernel."""


def grouped_matmul(
    x: jax.Array,
    weight: Weight,
    sizes: jax.Array,
    *,
    out_dtype: DTypeLike = jnp.float32,
    platform: str = "cpu",
) -> jax.Array:
    """`x [R, in]` times matrices `[G, out, in]`, transposed: [R, out] in `out_dtype`. Sums are float32.

    Args:
        x: the activations; the first `sizes[0]` rows belong to group 0, those after them to group 1, and so on.
        weight: the matrices as one, [G * out, in]; its layout, see `choose_grouped_layout`, has a part in the choice
            of an implementation.
        sizes: int32 [G]. Rows that are in no group, after all others, are padding, whose products mean nothing.
        out_dtype: of the result.
        platform: JAX's name of what is compiled for.
    """
    if weight.scales is not None:
        # Few models are quantized: starts of others are faster without the import.
        from jaxllm.pallas_kernels.grouped_matmul.quantized import quantized_grouped_matmul

        return quantized_grouped_matmul(x, weight, sizes, out_dtype, platform)
    return IMPLEMENTATIONS[implementation_for(weight, platform)](x, weight, sizes, out_dtype)


def implementation_for(weight: Weight, platform: str) -> str:
    """The name of the implementation that multiplies with a weight."""
    if isinstance(weight.layout, Streamed):
        return "tpu"
    if isinstance(weight.layout, WeightLayout) and weight.layout.is_packed:
        return "cpu"
    return "active_groups" if platform == "cpu" else "ragged_dot"


def choose_grouped_layout(
    groups: int,
    shape: tuple[int, int],
    dtype: DTypeLike,
    *,
    native: bool = False,
    multiplies_pairs: bool = False,
    backend: str = "xla",
    parts: tuple[int, int] = (1, 1),
) -> WeightLayout:
    """The layout of a matrix of `shape` (out, in) for each of so many groups.

    Args:
        groups: how many.
        shape: of one matrix.
        dtype: of the weights.
        native: whether kernels for CPUs may read it. They want it packed, each block of an output of one group.
        multiplies_pairs: see `choose_layout`.
        backend: 'tpu' if the kernel for TPUs is to read it, as far as it can.
        parts: devices that rows and columns of each matrix are split over.
    """
    out_size, in_size = shape
    if backend == "tpu" and can_stream(shape, dtype, parts):
        return Streamed((groups * out_size, in_size), parts[1])
    layout = choose_layout((groups * out_size, in_size), dtype, native=native, multiplies_pairs=multiplies_pairs)
    return RowMajor(layout.shape) if out_size % layout.rows_per_entry else layout
