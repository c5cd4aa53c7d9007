"""The tensors of a checkpoint that a model's parameters are made of, found and checked by the headers of its files."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jaxllm.models.checkpoint.packed_experts import with_experts_apart
from jaxllm.models.checkpoint.safetensors_file import DTYPES, Tensor
from jaxllm.models.checkpoint.weight_files import tensors_in
from jaxllm.models.checkpoint.weight_target import Slots, Specs, WeightTarget
from jaxllm.models.errors import ModelError

if TYPE_CHECKING:
    from jaxllm.models.quantization.format import Format, MatrixTensor

    Found = Tensor | MatrixTensor


def matching_tensors(
    folder: Path,
    specs: Specs,
    slots: Slots,
    ignored: Sequence[str],
    renamed: Mapping[str, str],
    load_format: str,
    known_format: "Format | None" = None,
    elsewhere: Callable[[str], bool] | None = None,
) -> "list[tuple[Found, Sequence[WeightTarget]]]":
    """The tensors and matrices of few bits that are wanted, each with its slots. Nothing but headers is read.

    Tensors whose name ends with one of `ignored` may be there, and so may those that are `elsewhere`, if they are not
    wanted. Raises `ModelError`.
    """
    given = tensors_in(folder, load_format)
    return match(str(folder), given, specs, slots, ignored, renamed, known_format, elsewhere)


def match(
    source: str,
    given: Iterable[Tensor],
    specs: Specs,
    slots: Slots,
    ignored: Sequence[str],
    renamed: Mapping[str, str],
    known_format: "Format | None" = None,
    elsewhere: Callable[[str], bool] | None = None,
    *,
    is_part: bool = False,
) -> "list[tuple[Found, Sequence[WeightTarget]]]":
    """`matching_tensors` of those that are `given`, by `source`; a part of a checkpoint may lack some."""
    tensors: dict[str, Tensor] = {}
    for tensor in given:
        name = new_name(tensor.name, renamed)
        if elsewhere is not None and name not in slots and elsewhere(name):
            continue
        if name in tensors:
            raise ModelError(f"tensor {tensor.name!r} is both in {tensors[name].path.name} and {tensor.path.name}")
        tensors[name] = tensor
    matrices = {} if known_format is None else known_format.matrices(tensors, slots)
    parts = {part for matrix in matrices.values() for part in matrix.parts}
    tensors = {name: tensor for name, tensor in tensors.items() if name not in parts}
    tensors = with_experts_apart(tensors, slots)
    missing = [name for name in slots if name not in tensors and name not in matrices]
    if missing and not is_part:
        raise ModelError(f"{source}: {_count(missing, 'tensor')} missing from the checkpoint: {_some(missing)}")
    extra = [name for name in tensors if name not in slots and not name.endswith(tuple(ignored))]
    if extra:
        raise ModelError(f"{source}: {_count(extra, 'unexpected tensor')} in the checkpoint: {_some(extra)}")
    for name, matrix in matrices.items():
        _check_matrix(matrix, slots[name], specs)
    for name, tensor in tensors.items():
        own = slots.get(name, ())
        if not own:
            continue  # It is ignored.
        if any(tensor.shape != slot.tensor_shape for slot in own):
            raise ModelError(
                f"{tensor.path}: tensor {name!r} has shape {list(tensor.shape)}, expected {list(own[0].tensor_shape)}"
            )
        if tensor.dtype not in DTYPES:
            raise ModelError(
                f"{tensor.path}: tensor {name!r} has type {tensor.dtype}, which cannot be read as a weight "
                f"(known: {', '.join(DTYPES)})"
            )
    found: dict[str, Found] = {**tensors, **matrices}
    return [(tensor, slots[name]) for name, tensor in found.items() if name in slots]


def _check_matrix(matrix: "MatrixTensor", own: Sequence[WeightTarget], specs: Specs) -> None:
    from jaxllm.models.checkpoint.quantized_tensors import check_matrix

    for slot in own:
        check_matrix(matrix, slot, specs[slot.path])


def new_name(name: str, renamed: Mapping[str, str]) -> str:
    """A tensor's name with another beginning, if it has one that is `renamed`; the longest counts."""
    for old in sorted(renamed, key=len, reverse=True):
        if name.startswith(old):
            return renamed[old] + name.removeprefix(old)
    return name


def _count(names: Collection[str], noun: str) -> str:
    return f"{len(names)} {noun}{'s' if len(names) > 1 else ''}"


def _some(names: Iterable[str]) -> str:
    first, rest = sorted(names)[:3], len(list(names)) - 3
    return ", ".join(first) + (f" and {rest} more" if rest > 0 else "")
