"""The inner loops of matrix products: a tile of results that stays in registers."""

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from jaxllm.pallas_kernels.cpu_common.bfloat16 import PairTile
from jaxllm.pallas_kernels.cpu_common.integers import load_ints
from jaxllm.pallas_kernels.cpu_common.tiles import Tile
from jaxllm.pallas_kernels.cpu_common.vectors import (
    BYTE,
    FLOAT,
    INT,
    LANES,
    WORD,
    emit_load,
    emit_prefetch,
    multiples,
    operation,
    pointer,
)
from jaxllm.pallas_kernels.linear.cpu import BLOCK
from jaxllm.pallas_kernels.linear.cpu.form import Form


def make_block_tile(rows: int, blocks: int, form: Form) -> Any:
    """`f(x, x_stride, w, w_stride, steps, y, y_stride, more, ahead, pace)`: `y[r, p] = sum_k x[r, k] w_p[k]`.

    `x` are rows of float32, or pairs of bfloat16 if the form is native; `x_stride` counts 32 bits. A block `w_p` is
    `steps` times a weight for each of `BLOCK` outputs, or a pair. The next one begins `w_stride` bytes after it. The
    results of the blocks lie side by side in `y`, float32; with `more` they are added to what is there. Step k fetches
    what lies `ahead + k * pace` bytes after the start of each block. A result is one chain of products in order,
    whatever the tile.
    """
    registers = BLOCK // LANES

    def emit(
        builder: ir.IRBuilder,
        x: ir.Value,
        x_stride: ir.Value,
        w: ir.Value,
        w_stride: ir.Value,
        steps: ir.Value,
        y: ir.Value,
        y_stride: ir.Value,
        more: ir.Value,
        ahead: ir.Value,
        pace: ir.Value,
    ) -> None:
        tile = (PairTile if form.is_native else Tile)(builder, rows, blocks * registers)
        kind = INT if form.is_native else FLOAT
        x_rows = [pointer(builder, x, start, kind) for start in multiples(builder, x_stride, rows)]
        starts = [builder.add(w, offset) for offset in multiples(builder, w_stride, blocks)]
        with cgutils.for_range(builder, steps) as loop:
            behind = builder.mul(loop.index, ir.Constant(WORD, form.step_bytes))
            there = builder.add(ahead, builder.mul(loop.index, pace))
            weights = []
            for start in starts:
                here = builder.add(start, behind)
                emit_prefetch(builder, pointer(builder, start, there, BYTE))
                places = [each * LANES for each in range(registers)]
                if form.is_native:
                    weights += [load_ints(builder, here, place) for place in places]
                else:
                    weights += [emit_load(builder, here, ir.Constant(WORD, place), form.dtype) for place in places]
            tile.add(x_rows, loop.index, weights)
        ends = tile.places(y_stride)
        tile.combine(more, y, ends, builder.fadd)
        tile.store(y, ends)

    return operation(types.void, (types.intp,) * 10, emit)
