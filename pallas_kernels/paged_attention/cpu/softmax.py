"""Scores of one query row of a block, on their way to weights."""

import numpy as np

from jaxllm.pallas_kernels.cpu.memory import compiled, real, set_real, word
from jaxllm.pallas_kernels.cpu.vectors import (
    LANES,
    add,
    divide,
    exp,
    fma,
    load,
    max_lanes,
    maximum,
    multiply,
    splat,
    steps,
    store,
    subtract,
    sum_lanes,
)
from jaxllm.pallas_kernels.paged_attention.cpu.job import (
    EACH_HEAD,
    J_FLOATS,
    J_HAS_SLOPES,
    J_K,
    J_N,
    SOFT_CAP,
    first_seen,
)

MASKED = np.float32(-1e30)
"""Score of a key that is not seen. Finite, so that a block without any visible key leaves no NaN."""
ZERO, ONE, TWO = np.float32(0), np.float32(1), np.float32(2)


@compiled
def adjust(job: int, head: int, member: int, scores: int, columns: int, position: int, begin: int) -> None:
    """Cap, lean and mask the scores of the `member`th query head at `position`, of `columns` keys from `begin` on."""
    floats, heads = word(job, J_FLOATS), word(job, J_N)
    cap = real(floats, SOFT_CAP)
    if cap > ZERO:
        _cap(scores, columns, cap)
    if word(job, J_HAS_SLOPES):
        slope = real(floats, EACH_HEAD + heads + head * (heads // word(job, J_K)) + member)
        _lean(scores, columns, slope, begin - position)
    seen = first_seen(job, position)
    if seen > begin or position + 1 < begin + columns:
        _mask(scores, columns, seen - begin, position + 1 - begin)


@compiled
def _cap(scores: int, columns: int, cap: float) -> None:
    """Scores become `cap * tanh(score / cap)`."""
    for column in range(0, columns, LANES):
        power = exp(multiply(load(scores, column), splat(TWO / cap)))
        tanh = subtract(splat(ONE), divide(splat(TWO), add(power, splat(ONE))))
        store(scores, column, multiply(tanh, splat(cap)))


@compiled
def _lean(scores: int, columns: int, slope: float, distance: int) -> None:
    """Add `slope` times the distance of each key; `distance` is that of the first."""
    for column in range(0, columns, LANES):
        distances = add(splat(np.float32(distance + column)), steps())
        store(scores, column, fma(distances, splat(slope), load(scores, column)))


@compiled
def _mask(scores: int, columns: int, begin: int, end: int) -> None:
    """Only columns from `begin` up to `end` are seen."""
    for column in range(min(begin, columns)):
        set_real(scores, column, MASKED)
    for column in range(max(end, 0), columns):
        set_real(scores, column, MASKED)


@compiled
def soften(scores: int, columns: int, maxima: int, totals: int, row: int, sums: int, head_size: int) -> None:
    """One step of the online softmax of a row: scores become weights, and what was summed before is rescaled."""
    largest = load(scores, 0)
    for column in range(LANES, columns, LANES):
        largest = maximum(largest, load(scores, column))
    before = real(maxima, row)
    top = max(before, max_lanes(largest))
    total = splat(ZERO)
    for column in range(0, columns, LANES):
        weights = exp(subtract(load(scores, column), splat(top)))
        store(scores, column, weights)
        total = add(total, weights)
    # What an unseen key weighs before any was seen is wiped out by the first that is: `decay` is then 0.
    decay = max_lanes(exp(splat(before - top)))
    set_real(maxima, row, top)
    set_real(totals, row, real(totals, row) * decay + sum_lanes(total))
    if decay != ONE:
        for place in range(0, head_size, LANES):
            store(sums, place, multiply(load(sums, place), splat(decay)))
