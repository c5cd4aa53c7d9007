"""The tensors of a checkpoint that a model's parameters are made of, found and checked by the headers of its files."""

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from jaxllm.models.checkpoint.checkpoint import Checkpoint
from jaxllm.models.checkpoint.names import CheckpointNames
from jaxllm.models.checkpoint.packed_experts import with_experts_apart
from jaxllm.models.checkpoint.safetensors_file import DTYPES, INTEGERS, Tensor
from jaxllm.models.checkpoint.weight_target import Slots, Specs, WeightTarget
from jaxllm.models.errors import ModelError

if TYPE_CHECKING:
    from jaxllm.models.quantization.format import MatrixTensor

    Found = Tensor | MatrixTensor
    Matched = list[tuple[Found, Sequence[WeightTarget]]]
    """Tensors and matrices of few bits, each with its slots."""


def match_checkpoint(checkpoint: Checkpoint, names: CheckpointNames, specs: Specs) -> "Matched":
    """Match parameters with a checkpoint, which may have nothing else. Only headers are read.

    Raises `ModelError` naming the tensor or file that is missing, unexpected or wrongly shaped.
    """
    names = names.as_in(tensor.name for tensor in checkpoint.tensors)
    return match(checkpoint.tensors, names, specs, names.slots(specs), str(checkpoint.folder))


def match(
    given: Iterable[Tensor],
    names: CheckpointNames,
    specs: Specs,
    slots: Slots,
    source: str,
    *,
    is_part: bool = False,
) -> "Matched":
    """`match_checkpoint` of tensors that are `given` by `source`, for `slots`; a part of a checkpoint may lack some."""
    tensors: dict[str, Tensor] = {}
    for tensor in given:
        name = names.new_name(tensor.name)
        if names.elsewhere is not None and name not in slots and names.elsewhere(name):
            continue
        if name in tensors:
            raise ModelError(f"tensor {tensor.name!r} is both in {tensors[name].path.name} and {tensor.path.name}")
        tensors[name] = tensor
    # Whatever a configuration says of all matrices, those of towers are as they were.
    of_text = [name for name, own in slots.items() if own[0].path[0] not in ("tower", "sound")]
    matrices = {} if names.known_format is None else names.known_format.matrices(tensors, of_text)
    parts = {part for matrix in matrices.values() for part in matrix.parts}
    tensors = {name: tensor for name, tensor in tensors.items() if name not in parts}
    tensors = with_experts_apart(tensors, slots)
    missing = [name for name in slots if name not in tensors and name not in matrices]
    if missing and not is_part:
        raise ModelError(f"{source}: {_count(missing, 'tensor')} missing from the checkpoint: {_some(missing)}")
    extra = [name for name in tensors if name not in slots and not names.may_ignore(name)]
    if extra:
        raise ModelError(f"{source}: {_count(extra, 'unexpected tensor')} in the checkpoint: {_some(extra)}")
    for name, matrix in matrices.items():
        _check_matrix(matrix, slots[name], specs)
    for name, tensor in tensors.items():
        _check_tensor(tensor, name, slots.get(name, ()), specs)
    found: dict[str, Found] = {**tensors, **matrices}
    return [(tensor, slots[name]) for name, tensor in found.items() if name in slots]


def _check_tensor(tensor: Tensor, name: str, own: Sequence[WeightTarget], specs: Specs) -> None:
    if not own:
        return  # It is ignored.
    if any(tensor.shape != slot.tensor_shape for slot in own):
        raise ModelError(
            f"{tensor.path}: tensor {name!r} has shape {list(tensor.shape)}, expected {list(own[0].tensor_shape)}"
        )
    # Weights that are rounded while loading have integers of 8 bits.
    is_table = specs[own[0].path].array.dtype == np.int32
    known = INTEGERS if is_table else DTYPES
    if tensor.dtype not in known:
        raise ModelError(
            f"{tensor.path}: tensor {name!r} has type {tensor.dtype}, which cannot be read as a "
            f"{'table' if is_table else 'weight'} (known: {', '.join(known)})"
        )


def _check_matrix(matrix: "MatrixTensor", own: Sequence[WeightTarget], specs: Specs) -> None:
    # Most checkpoints are not quantized: starts are faster without the import.
    from jaxllm.models.checkpoint.quantized_tensors import check_matrix

    for slot in own:
        check_matrix(matrix, slot, specs[slot.path])


def _count(names: Collection[str], noun: str) -> str:
    return f"{len(names)} {noun}{'s' if len(names) > 1 else ''}"


def _some(names: Iterable[str]) -> str:
    first, rest = sorted(names)[:3], len(list(names)) - 3
    return ", ".join(first) + (f" and {rest} more" if rest > 0 else "")
