"""The inner loop of both products of attention: a tile of sums that stays in registers."""

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from jaxllm.pallas_kernels.cpu_common.bfloat16 import PAIRS, PairTile, load_pairs
from jaxllm.pallas_kernels.cpu_common.tiles import Tile
from jaxllm.pallas_kernels.cpu_common.vectors import (
    BYTE,
    FLOAT,
    INT,
    WORD,
    emit_load,
    emit_prefetch,
    multiples,
    operation,
    pointer,
)


def make_outer_tile(rows: int, vectors: int, kind: str) -> Any:
    """`f(a, a_stride, bs, b_stride, run, length, c, c_stride, more, nexts, step)`: `c[r, p] = sum_k a[r, k] b[k, p]`.

    `a` holds `rows` rows of `length` float32. `b` is read in runs of `run` rows, each in `vectors` of `LANES` numbers
    of type `kind`: at `bs` lie the addresses of the vectors, run by run; rows of a vector lie `b_stride` apart. Results
    lie side by side in `c`. With `more` sums begin with what is in `c`. A result is one chain of products in order,
    whatever the tile.

    At `nexts` lie as many addresses of what is needed next: row k of a run fetches what lies `k * step` bytes after.

    Where `kind` is `PAIRS`, all numbers of `a` and `b` are pairs of bfloat16, and strides and lengths count pairs.
    """
    is_paired = kind == PAIRS

    def emit(
        builder: ir.IRBuilder,
        a: ir.Value,
        a_stride: ir.Value,
        bs: ir.Value,
        b_stride: ir.Value,
        run: ir.Value,
        length: ir.Value,
        c: ir.Value,
        c_stride: ir.Value,
        more: ir.Value,
        nexts: ir.Value,
        step: ir.Value,
    ) -> None:
        tile = (PairTile if is_paired else Tile)(builder, rows, vectors)
        places = tile.places(c_stride)
        tile.combine(more, c, places, lambda stored, total: stored)
        starts = multiples(builder, a_stride, rows)
        with cgutils.for_range_slice(builder, ir.Constant(WORD, 0), length, run) as (begin, index):
            words = [
                builder.add(builder.mul(index, ir.Constant(WORD, vectors)), ir.Constant(WORD, each))
                for each in range(vectors)
            ]
            here = [builder.load(pointer(builder, bs, place, WORD)) for place in words]
            there = [builder.load(pointer(builder, nexts, place, WORD)) for place in words]
            xs = [pointer(builder, a, builder.add(start, begin), INT if is_paired else FLOAT) for start in starts]
            left = builder.sub(length, begin)
            count = builder.select(builder.icmp_signed("<", left, run), left, run)
            with cgutils.for_range(builder, count) as loop:
                place, ahead = builder.mul(loop.index, b_stride), builder.mul(loop.index, step)
                if is_paired:
                    values = [load_pairs(builder, address, place) for address in here]
                else:
                    values = [emit_load(builder, address, place, kind) for address in here]
                for address in there:
                    emit_prefetch(builder, pointer(builder, address, ahead, BYTE))
                tile.add(xs, loop.index, values)
        tile.store(c, places)

    return operation(types.void, (types.intp,) * 11, emit)
