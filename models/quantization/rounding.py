"""Ordinary matrices as ones of few bits: each group of a row by itself, rounded to the nearest."""

import os
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import numpy.typing as npt

from jaxllm.pallas_kernels.linear.weight_type import INT4, QuantizedMatrix, Values, WeightType, pack_codes

CHUNK = 2**18
"""Numbers that are rounded at a time, so that they stay in a processor's cache."""

SHARES = (1.0, 0.92, 0.84)
"""Shares of a group's largest value that the largest 4-bit code may stand for: the best of these is taken."""


def can_round_to(kind: WeightType) -> bool:
    """Whether matrices can be rounded to a type."""
    is_known = kind.code == INT4 if kind.values == Values.CODES else True
    return is_known and not kind.has_offsets and not kind.is_reordered


def rounded(matrix: npt.NDArray[np.float32], kind: WeightType) -> QuantizedMatrix:
    """A float32 matrix [out, in] in a type, see `can_round_to`. Rows do not depend on one another.

    Numbers that are not finite give such scales; loading rejects them by the tensor's name.
    """
    assert can_round_to(kind)
    shape = (matrix.shape[0], matrix.shape[1])
    values = np.empty(kind.values_shape(shape), kind.array_type)
    scales = np.empty(kind.scales_shape(shape), np.dtype(kind.scales))
    step = max(1, CHUNK // max(1, shape[1]))

    def work(start: int) -> None:
        part = slice(start, start + step)
        with np.errstate(invalid="ignore", over="ignore"):
            values[part], scales[part] = _rounded(matrix[part], kind)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(work, range(0, shape[0], step)))
    return QuantizedMatrix(shape, kind, values, scales)


def _rounded(matrix: np.ndarray, kind: WeightType) -> tuple[np.ndarray, np.ndarray]:
    rows, in_size = matrix.shape
    group = kind.group or in_size
    padded = np.pad(matrix, ((0, 0), (0, -in_size % group))) if in_size % group else matrix
    groups = padded.reshape(rows, -1, group).astype(np.float32, copy=False)
    most = np.abs(groups).max(axis=2, keepdims=True)
    if kind.values == Values.CODES:
        numbers, scales = _four_bits(groups, most, np.dtype(kind.scales))
        codes = (numbers + 8).astype(np.uint8).reshape(rows, -1)[:, :in_size]
        return pack_codes(codes), scales[:, :, 0]
    largest = np.float32(127 if kind.values == Values.INT8 else ml_dtypes.finfo(kind.array_type).max)
    scales = np.where(most == 0, 1, most / largest).astype(kind.scales)
    numbers = np.rint(groups / scales) if kind.values == Values.INT8 else groups / scales
    numbers = np.clip(numbers, -largest, largest)
    return numbers.astype(kind.array_type).reshape(rows, -1)[:, :in_size], scales[:, :, 0]


def _four_bits(groups: np.ndarray, most: np.ndarray, dtype: np.dtype[np.generic]) -> tuple[np.ndarray, np.ndarray]:
    """Whole numbers of -8 to 7 and the scales of groups, of the `SHARES` those whose error's squares are fewest."""
    best: tuple[np.ndarray, np.ndarray] | None = None
    least = np.zeros(0)
    for share in SHARES:
        scales = np.where(most == 0, 1, most * np.float32(share / 7.5)).astype(dtype)
        numbers = np.clip(np.rint(groups / scales), -8, 7)
        error = ((numbers * scales - groups) ** 2).sum(axis=2, keepdims=True)
        if best is None:
            best, least = (numbers, scales), error
            continue
        is_better = error < least
        best = np.where(is_better, numbers, best[0]), np.where(is_better, scales, best[1])
        least = np.minimum(error, least)
    assert best is not None
    return best
