"""Peak rates of this machine's processors and memory, measured: the bounds for speed on CPU."""

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils

from jaxllm.pallas_kernels.cpu_common.bfloat16 import emit_dot_pairs
from jaxllm.pallas_kernels.cpu_common.processor import host_processor
from jaxllm.pallas_kernels.cpu_common.vectors import (
    FLOAT,
    HAS_AVX512,
    LANES,
    emit_fma,
    emit_fold,
    emit_load,
    emit_prefetch,
    integer,
    number,
    operation,
    pointer,
)

CHAINS = 24 if HAS_AVX512 else 12
"""Vectors that do not depend on one another, more than a processor has under way at a time."""
ROUNDS = 20_000_000
READ = 1 << 29
"""Bytes, beyond any cache."""
AHEAD = 4096
"""Bytes from what is read to what is fetched meanwhile."""
ATTEMPTS = 5


@dataclass(frozen=True)
class Machine:
    """Operations per second with all operands in registers, and bytes per second read from memory."""

    flops: float
    """In float32."""
    bandwidth: float
    bfloat16_flops: float
    """Products of bfloat16, summed in float32; those of float32 where the processor has no others."""


def measure_machine() -> Machine:
    """The best of a few attempts with as many threads as there are processors (some 5 s)."""
    threads = os.cpu_count() or 1
    data = np.ones(READ // 4, np.float32)
    rounds = data.size // threads // (CHAINS * LANES)
    starts = [data.ctypes.data + 4 * thread * rounds * CHAINS * LANES for thread in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        multiplying = _shortest(pool, _multiply, [(0, ROUNDS)] * threads)
        reading = _shortest(pool, _read, [(start, rounds) for start in starts])
        pairs = host_processor().multiplies_bfloat16
        multiplying_pairs = _shortest(pool, _multiply_pairs, [(0, ROUNDS)] * threads) if pairs else 2 * multiplying
    vectors = CHAINS * LANES * threads
    return Machine(
        flops=2 * vectors * ROUNDS / multiplying,
        bandwidth=4 * vectors * rounds / reading,
        bfloat16_flops=4 * vectors * ROUNDS / multiplying_pairs,
    )


def _shortest(pool: ThreadPoolExecutor, function: Callable[[int, int], float], calls: list[tuple[int, int]]) -> float:
    """Seconds that the calls take together, each in a thread."""
    compiled: Any = njit("float32(intp, intp)", nogil=True)(function)
    times = []
    for _ in range(ATTEMPTS):
        began = time.perf_counter()
        list(pool.map(compiled, *zip(*calls, strict=True)))
        times.append(time.perf_counter() - began)
    return min(times)


def _loop(each: Callable[[ir.IRBuilder, ir.Value, ir.Value, ir.Value], ir.Value]) -> Any:
    """`f(address, rounds)`: goes over `CHAINS` vectors again and again; `each` makes one of itself and of a place."""

    def emit(builder: ir.IRBuilder, address: ir.Value, rounds: ir.Value) -> ir.Value:
        chains = [cgutils.alloca_once_value(builder, number(1.0)) for _ in range(CHAINS)]
        with cgutils.for_range(builder, rounds) as loop:
            first = builder.mul(loop.index, ir.Constant(loop.index.type, CHAINS * LANES))
            for index, chain in enumerate(chains):
                place = builder.add(first, ir.Constant(first.type, index * LANES))
                builder.store(each(builder, builder.load(chain), address, place), chain)
        total = number(0.0)
        for chain in chains:
            total = builder.fadd(total, builder.load(chain))
        return emit_fold(builder, total, builder.fadd)

    return operation(types.float32, (types.intp, types.intp), emit)


def _emit_multiply(builder: ir.IRBuilder, chain: ir.Value, address: ir.Value, place: ir.Value) -> ir.Value:
    return emit_fma(builder, chain, number(0.5), number(1.0))


def _emit_read(builder: ir.IRBuilder, chain: ir.Value, address: ir.Value, place: ir.Value) -> ir.Value:
    ahead = builder.add(place, ir.Constant(place.type, AHEAD // 4))
    emit_prefetch(builder, pointer(builder, address, ahead, FLOAT))
    return builder.fadd(chain, emit_load(builder, address, place))


def _emit_multiply_pairs(builder: ir.IRBuilder, chain: ir.Value, address: ir.Value, place: ir.Value) -> ir.Value:
    return emit_dot_pairs(builder, chain, integer(0x3F003F00), integer(0x3F003F00))


_multiply_loop, _read_loop = _loop(_emit_multiply), _loop(_emit_read)
_multiply_pairs_loop = _loop(_emit_multiply_pairs)


def _multiply(address: int, rounds: int) -> float:
    result: float = _multiply_loop(address, rounds)
    return result


def _multiply_pairs(address: int, rounds: int) -> float:
    result: float = _multiply_pairs_loop(address, rounds)
    return result


def _read(address: int, rounds: int) -> float:
    result: float = _read_loop(address, rounds)
    return result
