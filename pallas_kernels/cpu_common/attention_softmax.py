"""Scores of a few query rows of a block, on their way to weights. All is in powers of 2, which cost least."""

from typing import Any

import numpy as np

from jaxllm.pallas_kernels.cpu_common.attention_words import (
    BLOCK,
    EACH_HEAD,
    SOFT_CAP,
    W_FLOATS,
    W_HAS_SLOPES,
    W_K,
    W_N,
    first_seen,
)
from jaxllm.pallas_kernels.cpu_common.bfloat16 import store_narrow
from jaxllm.pallas_kernels.cpu_common.memory import compiled, real, set_real, word
from jaxllm.pallas_kernels.cpu_common.vectors import (
    LANES,
    add,
    divide,
    exp2,
    fma,
    keep,
    load,
    max_lanes,
    maximum,
    multiply,
    splat,
    steps,
    store,
    subtract,
)

MASKED = np.float32(-1e30)
"""Score of a key that is not seen. Finite, so that a block without any visible key leaves no NaN."""
LOG2_E = np.float32(1.4426950408889634)
"""e ** x is 2 ** (x log2 e): a factor of all that scores are made of."""
ZERO, ONE, TWO = np.float32(0), np.float32(1), np.float32(2)
MOST = np.float32(30)
"""The hyperbolic tangent of more is 1."""
SMALLEST = np.float32(1e-30)
"""Minimum of a sum of weights, which is a divisor."""


@compiled
def adjust(work: int, head: int, member: int, scores: int, columns: int, position: int, end: int, begin: int) -> None:
    """Cap, lean and mask the scores of the `member`th query head at `position`, of `columns` keys from `begin` on.

    It sees no key from `end` on.
    """
    floats, heads = word(work, W_FLOATS), word(work, W_N)
    cap = real(floats, SOFT_CAP) * LOG2_E
    if cap > ZERO:
        _cap(scores, columns, cap)
    if word(work, W_HAS_SLOPES):
        slope = real(floats, EACH_HEAD + heads + head * (heads // word(work, W_K)) + member) * LOG2_E
        _lean(scores, columns, slope, begin - position)
    first, seen = first_seen(work, position) - begin, end - begin
    if first > 0 or seen < columns:
        for column in range(0, columns, LANES):
            store(scores, column, keep(load(scores, column), first - column, seen - column, MASKED))


@compiled
def scale_columns(rows: int, scores: int, columns: int, scales: int) -> None:
    """Multiply what is in each column of a few rows by the scale of its key; `scales` are addresses of vectors."""
    for row in range(rows):
        for column in range(0, columns, LANES):
            place = row * BLOCK + column
            store(scores, place, multiply(load(scores, place), load(word(scales, BLOCK // LANES + column // LANES), 0)))


@compiled
def _cap(scores: int, columns: int, cap: float) -> None:
    """Scores become `cap * tanh(score / cap)`."""
    for column in range(0, columns, LANES):
        score = maximum(load(scores, column), splat(-MOST * cap))
        power = exp2(multiply(score, splat(-TWO * LOG2_E / cap)))
        tanh = subtract(divide(splat(TWO), add(power, splat(ONE))), splat(ONE))
        store(scores, column, multiply(tanh, splat(cap)))


@compiled
def _lean(scores: int, columns: int, slope: float, distance: int) -> None:
    """Add `slope` times the distance of each key; `distance` is that of the first."""
    for column in range(0, columns, LANES):
        distances = add(splat(np.float32(distance + column)), steps())
        store(scores, column, fma(distances, splat(slope), load(scores, column)))


def make_soften(store_weights: Any) -> Any:
    """`soften`, which writes weights with this function: a narrower type to the beginning of each line."""

    @compiled
    def soften(
        rows: int, scores: int, columns: int, maxima: int, totals: int, sums: int, head_size: int, decays: int
    ) -> None:
        """One step of the online softmax: scores [rows, BLOCK] become weights, and what was summed before is rescaled.

        `maxima` [LANES] has a lane for each row, `totals` [rows, LANES] as many sums for each as there are lanes;
        `decays` [LANES] is memory to work in.
        """
        for row in range(rows):
            line = scores + 4 * row * BLOCK
            largest = load(line, 0)
            for column in range(LANES, columns, LANES):
                largest = maximum(largest, load(line, column))
            set_real(decays, row, max_lanes(largest))
        tops = maximum(load(maxima, 0), load(decays, 0))
        # What an unseen key weighs before any was seen is wiped out by the first that is: its decay is then 0.
        store(decays, 0, exp2(subtract(load(maxima, 0), tops)))
        store(maxima, 0, tops)
        for row in range(rows):
            line, top, decay = scores + 4 * row * BLOCK, splat(real(maxima, row)), real(decays, row)
            total = splat(ZERO)
            for column in range(0, columns, LANES):
                weights = exp2(subtract(load(line, column), top))
                store_weights(line, column, weights)
                total = add(total, weights)
            store(totals, row * LANES, fma(load(totals, row * LANES), splat(decay), total))
            if decay != ONE:
                for place in range(row * head_size, (row + 1) * head_size, LANES):
                    store(sums, place, multiply(load(sums, place), splat(decay)))

    return soften


soften = make_soften(store)
soften_narrow = make_soften(store_narrow)
"""`soften` whose weights become bfloat16; their totals are of what they were before."""
