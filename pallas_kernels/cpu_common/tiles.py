"""Shared by inner loops of products: a tile of sums that stays in registers."""

from collections.abc import Callable, Sequence

from llvmlite import ir
from numba.core import cgutils

from jaxllm.pallas_kernels.cpu_common.vectors import (
    LANES,
    WORD,
    emit_fma,
    emit_load,
    emit_splat,
    emit_store,
    multiples,
    number,
)


class Tile:
    """Sums of `rows` rows of some vectors side by side, each one chain of products in order, whatever the tile."""

    def __init__(self, builder: ir.IRBuilder, rows: int, vectors: int) -> None:
        self._builder, self._rows, self._vectors = builder, rows, vectors
        self._totals = [cgutils.alloca_once_value(builder, number(0.0)) for _ in range(rows * vectors)]

    def add(self, rows: Sequence[ir.Value], step: ir.Value, vectors: Sequence[ir.Value]) -> None:
        """Add an outer product: number `step` of every row, a pointer to float32, times the vectors."""
        totals = iter(self._totals)
        for row in rows:
            scalar = emit_splat(self._builder, self._builder.load(self._builder.gep(row, [step])))
            for vector in vectors:
                total = next(totals)
                self._builder.store(emit_fma(self._builder, scalar, vector, self._builder.load(total)), total)

    def places(self, stride: ir.Value) -> list[ir.Value]:
        """Offsets of the sums where they are stored, in rows `stride` apart."""
        return [
            self._builder.add(start, ir.Constant(WORD, index * LANES))
            for start in multiples(self._builder, stride, self._rows)
            for index in range(self._vectors)
        ]

    def combine(
        self,
        more: ir.Value,
        address: ir.Value,
        places: Sequence[ir.Value],
        function: Callable[[ir.Value, ir.Value], ir.Value],
    ) -> None:
        """If `more`, make each sum what `function` makes of the number stored at its place and of itself."""
        with self._builder.if_then(self._builder.trunc(more, ir.IntType(1))):
            for place, total in zip(places, self._totals, strict=True):
                stored = emit_load(self._builder, address, place)
                self._builder.store(function(stored, self._builder.load(total)), total)

    def totals(self) -> list[ir.Value]:
        """The sums, row by row."""
        return [self._builder.load(total) for total in self._totals]

    def store(self, address: ir.Value, places: Sequence[ir.Value]) -> None:
        """Write the sums down."""
        for place, total in zip(places, self._totals, strict=True):
            emit_store(self._builder, address, place, self._builder.load(total))
