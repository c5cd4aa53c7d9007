"""Rows of activations, prepared for a product."""

import math

import numpy as np

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


@compiled
def normalise(to: int, row: int, size: int, weight: int, epsilon: int) -> None:
    """Scale `size` numbers to unit mean square, then by `weight` [size] (arXiv 1910.07467)."""
    squares = splat(ZERO)
    for place in range(0, size, LANES):
        values = load(row, place)
        squares = fma(values, values, squares)
    scale = splat(ONE / np.float32(math.sqrt(sum_lanes(squares) / np.float32(size) + real(epsilon, 0))))
    for place in range(0, size, LANES):
        store(to, place, multiply(multiply(load(row, place), scale), load(weight, place)))


@compiled
def gate(to: int, row: int, size: int) -> None:
    """`silu(g) * u` of `size` numbers `g` and as many `u` after them (arXiv 2002.05202)."""
    for place in range(0, size, LANES):
        values = load(row, place)
        power = exp2(subtract(splat(ZERO), maximum(multiply(values, splat(LOG2_E)), splat(SMALLEST))))
        store(to, place, multiply(divide(values, add(power, splat(ONE))), load(row, size + place)))
