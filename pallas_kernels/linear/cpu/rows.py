"""Rows of activations, prepared for a product."""

import math
from typing import Any

import numpy as np

from jaxllm.pallas_kernels.cpu_common.bfloat16 import load_narrow, store_narrow
from jaxllm.pallas_kernels.cpu_common.memory import compiled, real
from jaxllm.pallas_kernels.cpu_common.vectors import (
    LANES,
    add,
    divide,
    exp2,
    fma,
    load,
    maximum,
    multiply,
    splat,
    store,
    subtract,
    sum_lanes,
)

ZERO, ONE = np.float32(0), np.float32(1)
LOG2_E = np.float32(math.log2(math.e))
SMALLEST = np.float32(-127)


def make_normalise(load_row: Any, store_row: Any) -> Any:
    """`normalise`, for rows that are read and written by these functions."""

    @compiled
    def normalise(to: int, row: int, size: int, weight: int, epsilon: int) -> None:
        squares = splat(ZERO)
        for place in range(0, size, LANES):
            values = load_row(row, place)
            squares = fma(values, values, squares)
        scale = splat(ONE / np.float32(math.sqrt(sum_lanes(squares) / np.float32(size) + real(epsilon, 0))))
        for place in range(0, size, LANES):
            store_row(to, place, multiply(multiply(load_row(row, place), scale), load(weight, place)))

    return normalise


def make_gate(load_row: Any, store_row: Any) -> Any:
    """`gate`, for rows that are read and written by these functions."""

    @compiled
    def gate(to: int, row: int, size: int) -> None:
        for place in range(0, size, LANES):
            values = load_row(row, place)
            power = exp2(subtract(splat(ZERO), maximum(multiply(values, splat(LOG2_E)), splat(SMALLEST))))
            store_row(to, place, multiply(divide(values, add(power, splat(ONE))), load_row(row, size + place)))

    return gate


normalise = make_normalise(load, store)
"""`normalise(to, row, size, weight, epsilon)`: scale `size` float32 to unit mean square, then by `weight` [size]
(arXiv 1910.07467)."""
gate = make_gate(load, store)
"""`gate(to, row, size)`: `silu(g) * u` of `size` float32 `g` and as many `u` after them (arXiv 2002.05202)."""
normalise_narrow = make_normalise(load_narrow, store_narrow)
"""`normalise` of bfloat16, which is rounded once, at the end. `weight` is float32."""
gate_narrow = make_gate(load_narrow, store_narrow)
"""`gate` of bfloat16, likewise."""
