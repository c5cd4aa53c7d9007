"""Matrices of few bits on their way from a checkpoint into parameters, whose arrays are several."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from jaxllm.models.checkpoint.tensor_source import (
    Fused,
    HalvesSwapped,
    Interleaved,
    OfExpert,
    TensorTransform,
    Transposed,
    Whole,
    WithoutBias,
)
from jaxllm.models.checkpoint.weight_target import ParameterPath, WeightTarget
from jaxllm.models.errors import ModelError
from jaxllm.models.layers.parameter import ARRAYS, ParameterSpec, Rows
from jaxllm.models.quantization.convert import common_type, converted
from jaxllm.models.quantization.format import MatrixTensor
from jaxllm.models.quantization.rounding import can_round_to, rounded
from jaxllm.pallas_kernels.linear.weight_type import QuantizedMatrix


def check_matrix(tensor: MatrixTensor, slot: WeightTarget, spec: ParameterSpec) -> None:
    """Raise `ModelError` unless a parameter can take its rows of a matrix, without loss."""
    rows = rows_of_all(slot.take, slot.shape[0])
    in_size = slot.shape[1] if len(slot.shape) == 2 else None
    if rows is None or in_size is None or tensor.shape != (rows, in_size):
        wanted = list(slot.shape) if rows is None or in_size is None else [rows, in_size]
        raise ModelError(
            f"{tensor.path}: matrix {tensor.name!r} has shape {list(tensor.shape)}, expected "
            f"{wanted}{'' if rows is not None else ', which is not quantized here'}"
        )
    if spec.matrix is not None and common_type((tensor.kind, spec.matrix.kind)) != spec.matrix.kind:
        raise ModelError(
            f"{tensor.path}: matrix {tensor.name!r} is {tensor.kind}, which cannot be converted without loss to "
            f"{spec.matrix.kind}, as the configuration declares"
        )


def rows_of_all(take: TensorTransform, rows: int) -> int | None:
    """Rows of a checkpoint's matrix where `take` gives `rows` of them; None where it does more than take rows."""
    match take:
        case Whole() | HalvesSwapped() | WithoutBias():
            return rows
        case Fused(sizes=sizes, blocks=blocks):
            return blocks * sum(sizes)
        case Transposed(then=then):
            return rows_of_all(then, rows)
        case Interleaved(count=count):
            return count * rows
        case OfExpert(count=count, then=then):
            own = rows_of_all(then, rows)
            return None if own is None else count * own
    return None


def taken_rows(take: TensorTransform, array: np.ndarray, rows: int) -> np.ndarray:
    """As above, for an array whose first axis is the matrix's; the matrix is [out, in] in any checkpoint."""
    match take:
        case Transposed(then=then):
            return taken_rows(then, array, rows)
        case OfExpert(count=count, then=then, expert=expert):
            return taken_rows(then, array.reshape(count, -1, *array.shape[1:])[expert], rows)
        case Fused() | HalvesSwapped() | Interleaved() | Whole():
            return take(array, (rows, *array.shape[1:]))
        case WithoutBias():
            return array
    raise AssertionError(take)


def widened_rows(slot: WeightTarget, matrix: QuantizedMatrix, dtype: np.dtype[np.generic]) -> np.ndarray:
    """What an ordinary parameter has of a matrix; only its own rows are widened."""
    return slot.rows.expand(_taken(slot, matrix).dequantized(np.float32).astype(dtype))


def _taken(slot: WeightTarget, matrix: QuantizedMatrix) -> QuantizedMatrix:
    """The part of a matrix that a slot holds."""
    rows = slot.shape[0]
    offsets = None if matrix.offsets is None else taken_rows(slot.take, matrix.offsets, rows)
    values, scales = (taken_rows(slot.take, each, rows) for each in (matrix.values, matrix.scales))
    return replace(matrix, shape=(rows, matrix.shape[1]), values=values, scales=scales, offsets=offsets)


def arrays_of(
    name: str, slot: WeightTarget, spec: ParameterSpec, tensor: np.ndarray | QuantizedMatrix
) -> Iterator[tuple[WeightTarget, np.ndarray]]:
    """The arrays of a matrix, each with its slot, from the tensor called `name`, which may be an ordinary one.

    Raises `ModelError` for numbers that are not finite.
    """
    assert spec.matrix is not None
    kind = spec.matrix.kind
    if isinstance(tensor, QuantizedMatrix):
        found = converted(_taken(slot, tensor), kind)
        assert found is not None, "checked before reading"
    elif not can_round_to(kind):
        raise ModelError(f"tensor {name!r} is not quantized, and cannot be quantized to {kind} here")
    else:
        found = rounded(np.asarray(slot.take(tensor, slot.shape), np.float32), kind)
    for array in ("values", "scales", "offsets"):
        values = getattr(found, array)
        if values is None:
            continue
        if array != "values" and not np.isfinite(values.astype(np.float32)).all():
            raise ModelError(f"tensor {name!r} has {array}, or values they are computed from, that are not finite")
        yield replace(slot, path=sibling(slot.path, array)), slot.rows.expand(values)
    if found.order is not None:
        yield replace(slot, path=sibling(slot.path, "order"), part=None, rows=Rows()), found.order
    if found.input_scale is not None:
        part = None if slot.part is None else replace(slot.part, start=_number(slot, spec), size=1)
        own_slot = replace(slot, path=sibling(slot.path, "input_scale"), part=part, rows=Rows(), blocks=1)
        yield own_slot, np.asarray(found.input_scale, np.float32).reshape(1)


def sibling(path: ParameterPath, array: str) -> ParameterPath:
    """The parameter that has another of a matrix's arrays."""
    return (*path[:-1], ARRAYS[array])


def _number(slot: WeightTarget, spec: ParameterSpec) -> int:
    """Which of the matrices that a parameter is made of a slot's is."""
    assert slot.part is not None
    assert not isinstance(spec.rows, Rows)
    names = [part.name for part in spec.rows.parts]
    return names.index(slot.part.name) + len(names) * (slot.part.expert or 0)
