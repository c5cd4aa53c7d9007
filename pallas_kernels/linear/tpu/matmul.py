"""The call of the kernel in `kernel`."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from jaxllm.pallas_kernels.float8 import FLOATS, widens_by_bits
from jaxllm.pallas_kernels.linear.tpu.blocks import Blocks, Dims, choose_blocks
from jaxllm.pallas_kernels.linear.tpu.codes import code_bias
from jaxllm.pallas_kernels.linear.tpu.kernel import Body, even_columns_first, kernel
from jaxllm.pallas_kernels.linear.weight import Weight
from jaxllm.pallas_kernels.linear.weight_type import INT4, UINT4, Values, WeightType
from jaxllm.pallas_kernels.tpu_common.constants import LANES
from jaxllm.pallas_kernels.tpu_common.target import target

INTEGER_CHIPS, FLOAT8_CHIPS = ("v5e", "v5p", "v6e"), ("tpu7x",)
"""Chips whose matrix units multiply int8, and those of float8."""
_DEPTH = 64
"""Rows of a register of 8 bits, twice."""
_FEW_ROWS = 256
"""With more rows, the order of columns would be changed at some cost, and widening takes less than multiplying."""


_FEW_PARTS, _FEW_IN_GROUPS = 64, 16
"""Rows that are multiplied in parts, at most, without and with groups."""


def quantized_matmul(
    x: jax.Array,
    weight: Weight,
    kind: WeightType,
    *,
    row_scales: jax.Array | None = None,
    out_dtype: DTypeLike = jnp.float32,
    blocks: Blocks | None = None,
) -> jax.Array:
    """`x` [T, in] times a matrix that lies in strips, see `Strips`: [T, S * C] in `out_dtype`.

    Args:
        x: the activations, columns in the order of the matrix; already int8 or float8 if `kind` says so.
        weight: values [S, in, C], scales and offsets [S, G, C], or stacks of them.
        kind: what its numbers mean.
        row_scales: float32 [T, 1]: what quantized rows are multiplied by.
        out_dtype: of the result.
        blocks: in place of those of the chip.

    Sums are float32 or int32. Where rows are bfloat16, and there are many of them or groups are small, a number and
    the scale of its group are multiplied and rounded to bfloat16, as `transformers` does.

    Raises `NotImplementedError` where a strip does not fit the chip's vector memory.
    """
    stacks = {"values": weight.array, "scales": weight.scales, "offsets": weight.offsets}
    by_strip = {
        name: array if weight.layer is not None else array[None] for name, array in stacks.items() if array is not None
    }
    if weight.layer is not None and pltpu.is_tpu_device():
        # XLA would copy the scales of all layers into vector memory for every call.
        by_strip = {name: pltpu.with_memory_space_constraint(array, pltpu.HBM) for name, array in by_strip.items()}
    _, strips, depth, columns = by_strip["values"].shape
    groups = 1 if kind.group is None else depth // kind.group
    by_row = {"x": x}
    if row_scales is not None:
        by_row["row_scales"] = row_scales
    if "offsets" in by_strip or code_bias(kind.code):
        by_row["sums"] = x.astype(jnp.float32).reshape(len(x), groups, -1).sum(axis=2)
    by_bits = len(x) <= _FEW_ROWS and _wide(x.dtype) == "bfloat16" and _takes_bits(kind, depth, columns)
    if by_bits:
        by_row["x"] = even_columns_first(x, kind.group)
    parted = row_scales is None and _takes_parts(x, kind)
    count, rows = len(x), -(-len(x) // 16) * 16 if parted else _whole_rows(x)
    if rows > count:
        by_row = {name: jnp.pad(array, ((0, rows - count), (0, 0))) for name, array in by_row.items()}
    bits = 4 if kind.values == Values.CODES else 8
    wide = "float8_e4m3fn" if parted else _wide(x.dtype)
    dims = Dims(rows, depth, strips, columns, groups, bits, x.dtype.name, wide, jnp.dtype(out_dtype).name)
    blocks = blocks or choose_blocks(dims, target())
    scales_sums = kind.group is not None and (2 * blocks.block <= kind.group or jnp.dtype(wide).itemsize == 1)

    def row_spec(width: int) -> pl.BlockSpec:
        return pl.BlockSpec((blocks.window, width), lambda strip, window, layer: (window, 0))

    def strip_spec(array: jax.Array) -> pl.BlockSpec:
        return pl.BlockSpec((None, blocks.strips, *array.shape[2:]), lambda strip, _, layer: (layer[0], strip, 0, 0))

    body = Body(kind.code, kind.group, scales_sums, wide, blocks.block, by_bits, parted)
    out: jax.Array = pl.pallas_call(
        partial(kernel, body=body, names=(*by_row, *by_strip, "out")),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(strips // blocks.strips, rows // blocks.window),
            in_specs=[row_spec(array.shape[1]) for array in by_row.values()]
            + [strip_spec(array) for array in by_strip.values()],
            out_specs=pl.BlockSpec(
                (blocks.window, blocks.strips * columns), lambda strip, window, layer: (window, strip)
            ),
        ),
        out_shape=jax.ShapeDtypeStruct((rows, strips * columns), out_dtype),
        compiler_params=pltpu.CompilerParams(
            vmem_limit_bytes=min(blocks.vmem_bytes(dims) * 5 // 4, target().vmem_bytes), disable_bounds_checks=True
        ),
        name="quantized_matmul",
    )(
        jnp.asarray(0 if weight.layer is None else weight.layer, jnp.int32).reshape(1),
        *by_row.values(),
        *by_strip.values(),
    )
    return out[:count] if rows > count else out


def _whole_rows(x: jax.Array) -> int:
    """Rows with padding: whole registers, which hold 32 rows of bytes, and whole blocks of many rows."""
    unit = 8 if len(x) <= 8 and x.dtype.itemsize > 1 else 32 if len(x) <= 256 else 256
    return -(-len(x) // unit) * unit


def _takes_parts(x: jax.Array, kind: WeightType) -> bool:
    """Whether rows are multiplied as two of float8 each: their units take half as many weights again then.

    Sums of groups are multiplied with their scales for each row: of many rows, or small groups, that takes longer.
    """
    if kind.code not in (INT4, UINT4) or x.dtype != jnp.bfloat16 or target().chip not in FLOAT8_CHIPS:
        return False
    return len(x) <= _FEW_PARTS if kind.group is None else len(x) <= _FEW_IN_GROUPS and kind.group >= LANES


def _takes_bits(kind: WeightType, depth: int, columns: int) -> bool:
    """Whether floats of 8 bits are widened by their bits: where the halves of groups are whole registers."""
    is_whole = columns % LANES == 0 and (depth if kind.group is None else kind.group) % _DEPTH == 0
    return is_whole and kind.array_type.name in FLOATS and widens_by_bits()


def _wide(rows: jnp.dtype) -> str:
    """The type in which rows and weights are multiplied: that of rows, where the chip multiplies it."""
    if rows.itemsize > 1:
        return rows.name
    return rows.name if target().chip in (INTEGER_CHIPS if rows == jnp.int8 else FLOAT8_CHIPS) else "bfloat16"
