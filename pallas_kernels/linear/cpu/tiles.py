"""The inner loops of matrix products: a tile of results that stays in registers."""

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from jaxllm.pallas_kernels.cpu_common.tiles import Tile
from jaxllm.pallas_kernels.cpu_common.vectors import (
    BYTE,
    FLOAT,
    LANES,
    WORD,
    emit_load,
    emit_prefetch,
    multiples,
    operation,
    pointer,
)
from jaxllm.pallas_kernels.linear.cpu import BLOCK


def make_block_tile(rows: int, blocks: int, kind: str) -> Any:
    """`f(x, x_stride, w, w_stride, length, y, y_stride, more, ahead, pace)`: `y[r, p] = sum_k x[r, k] w_p[k]`.

    `x` are rows of float32. A block `w_p` is [length, BLOCK] of type `kind`; the next one begins `w_stride` bytes
    after it. The results of the blocks lie side by side in `y`; with `more` they are added to what is there. Step k
    fetches what lies `ahead + k * pace` bytes after the start of each block. A result is one chain of products in
    order, whatever the tile.
    """
    registers = BLOCK // LANES
    step = BLOCK * (2 if kind == "bfloat16" else 4)

    def emit(
        builder: ir.IRBuilder,
        x: ir.Value,
        x_stride: ir.Value,
        w: ir.Value,
        w_stride: ir.Value,
        length: ir.Value,
        y: ir.Value,
        y_stride: ir.Value,
        more: ir.Value,
        ahead: ir.Value,
        pace: ir.Value,
    ) -> None:
        tile = Tile(builder, rows, blocks * registers)
        x_rows = [pointer(builder, x, start, FLOAT) for start in multiples(builder, x_stride, rows)]
        starts = [builder.add(w, offset) for offset in multiples(builder, w_stride, blocks)]
        with cgutils.for_range(builder, length) as loop:
            behind = builder.mul(loop.index, ir.Constant(WORD, step))
            there = builder.add(ahead, builder.mul(loop.index, pace))
            weights = []
            for start in starts:
                here = builder.add(start, behind)
                emit_prefetch(builder, pointer(builder, start, there, BYTE))
                weights += [
                    emit_load(builder, here, ir.Constant(WORD, each * LANES), kind) for each in range(registers)
                ]
            tile.add(x_rows, loop.index, weights)
        places = tile.places(y_stride)
        tile.combine(more, y, places, builder.fadd)
        tile.store(y, places)

    return operation(types.void, (types.intp,) * 10, emit)
