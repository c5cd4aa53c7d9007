"""Matrices of few bits as others of another type, without loss: for matrices that become one."""

from collections.abc import Sequence
from dataclasses import replace

import ml_dtypes
import numpy as np

from jaxllm.pallas_kernels.linear.weight_type import Activations, QuantizedMatrix, Values, WeightType, unpack_codes


def common_type(kinds: Sequence[WeightType]) -> WeightType | None:
    """A type that matrices of all these can be brought to without loss; None where there is none."""
    first, *others = kinds
    if all(kind == first for kind in others):
        return first
    if any(kind.activations != first.activations or kind.is_reordered != first.is_reordered for kind in others):
        return None
    if first.is_reordered and len({kind.group for kind in kinds}) > 1:
        return None
    groups = {kind.group for kind in kinds} - {None}
    group = min((group for group in groups if group is not None), default=None)
    if any(kind.group is not None and group is not None and kind.group % group for kind in kinds):
        return None
    if len(groups) > 0 and first.activations != Activations.AS_THEY_ARE and len({kind.group for kind in kinds}) > 1:
        return None
    scales = {kind.scales for kind in kinds}
    common = replace(
        first,
        group=group,
        has_offsets=any(kind.has_offsets for kind in kinds),
        scales=scales.pop() if len(scales) == 1 else "float32",
    )
    if all((kind.values, kind.code) == (first.values, first.code) for kind in others):
        return common
    if all(_is_integer(kind) for kind in kinds):
        return replace(common, values=Values.INT8, code=None)
    return None


def _is_integer(kind: WeightType) -> bool:
    """Whether its values are whole numbers that int8 holds."""
    if kind.code is not None:
        return all(number == int(number) and abs(number) < 128 for number in kind.code)
    return kind.values == Values.INT8


def converted(matrix: QuantizedMatrix, kind: WeightType) -> QuantizedMatrix | None:
    """The matrix in another type with equal values; None if that is impossible."""
    if matrix.kind == kind:
        return matrix
    if common_type((matrix.kind, kind)) != kind:
        return None
    own, in_size = matrix.kind, matrix.shape[1]
    values = matrix.values
    if kind.code is None and own.code is not None:
        codes = unpack_codes(values.view(np.uint8), in_size)
        values = np.asarray(own.code, np.float32).astype(np.int8)[codes]
    return QuantizedMatrix(
        matrix.shape,
        kind,
        values,
        _regrouped(matrix.scales, own, kind, in_size),
        _offsets(matrix, kind),
        matrix.order,
        matrix.input_scale,
    )


def _offsets(matrix: QuantizedMatrix, kind: WeightType) -> np.ndarray | None:
    if not kind.has_offsets:
        return None
    if matrix.offsets is None:
        return np.zeros(kind.scales_shape(matrix.shape), _dtype(kind))
    return _regrouped(matrix.offsets, matrix.kind, kind, matrix.shape[1])


def _regrouped(scales: np.ndarray, own: WeightType, kind: WeightType, in_size: int) -> np.ndarray:
    """Scales of groups for smaller ones; each smaller group is within one."""
    if own.group != kind.group:
        assert kind.group is not None
        starts = np.arange(kind.scales_shape((1, in_size))[1]) * kind.group
        scales = scales[:, starts // (own.group or in_size)]
    return scales.astype(_dtype(kind))


def _dtype(kind: WeightType) -> np.dtype[np.generic]:
    return np.dtype(ml_dtypes.bfloat16) if kind.scales == "bfloat16" else np.dtype(kind.scales)
