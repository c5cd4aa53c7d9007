"""Rows of activations, prepared for products with quantized matrices."""

from typing import Any

import numpy as np

from jaxllm.pallas_kernels.cpu_common.integers import larger_magnitude, magnitude, make_store_digits, sum_bytes
from jaxllm.pallas_kernels.cpu_common.memory import compiled, set_int32, set_real
from jaxllm.pallas_kernels.cpu_common.vectors import LANES, add, load, splat, store, sum_lanes
from jaxllm.pallas_kernels.linear.cpu.quantized.form import Form
from jaxllm.pallas_kernels.linear.cpu.quantized.tiles import FIRST_DIGIT, SUM, UNIT

ZERO, ONE = np.float32(0), np.float32(1)
TINY = np.float32(1e-30)


def meta_words(form: Form) -> int:
    """Words that are known of a group of a row, see `tiles`."""
    return FIRST_DIGIT + form.digits


def make_prepare(form: Form) -> Any:
    """`f(to, meta, row, depth, segment, bias, unit, input_scale)`: all that tiles need of a row of float32.

    `segment` inputs, a multiple of 16, are added up at a time. An `input_scale` of 0 means that of the row.
    """
    return _make_integers(form) if form.digits else _copy


@compiled
def _copy(to: int, meta: int, row: int, depth: int, segment: int, bias: int, unit: float, input_scale: float) -> None:
    """Rows as they are, and their sums."""
    for begin in range(0, depth, segment):
        total = splat(ZERO)
        for place in range(begin, min(begin + segment, depth), LANES):
            values = load(row, place)
            total = add(total, values)
            store(to, place, values)
        words = begin // segment * FIRST_DIGIT
        set_real(meta, words + UNIT, ONE)
        set_real(meta, words + SUM, sum_lanes(total))


def _make_integers(form: Form) -> Any:
    digits, words = form.digits, meta_words(form)
    # With one digit as everybody does it; with more, a quotient rounded up still fits.
    largest = np.float32(127 * 256 ** (digits - 1))
    store_digits: Any = make_store_digits(digits, form.is_split)

    @compiled
    def integers(
        to: int, meta: int, row: int, depth: int, segment: int, bias: int, unit: float, input_scale: float
    ) -> None:
        scale: Any = input_scale
        if scale == ZERO:
            most = splat(ZERO)
            for place in range(0, depth, LANES):
                most = larger_magnitude(most, load(row, place))
            found = magnitude(most)
            # Where it is NaN, which is above nothing, that stays.
            scale = (found if not found < TINY else TINY) / largest
        for place in range(0, depth, LANES):
            store_digits(to + place, depth, load(row, place), scale)
        for begin in range(0, depth, segment):
            length = min(segment, depth - begin)
            here = begin // segment * words
            total = ZERO
            for digit in range(digits):
                count = sum_bytes(to + digit * depth + begin, length)
                set_int32(meta, here + FIRST_DIGIT + digit, -bias * count)
                total = total * np.float32(256) + np.float32(count)
            set_real(meta, here + UNIT, scale * unit)
            set_real(meta, here + SUM, total * scale)

    return integers
