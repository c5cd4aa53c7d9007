"""ParameterLoader a model, which was built from shapes, with parameters."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from flax import nnx

from jaxllm.models.checkpoint.host_parameter import whole_parameter
from jaxllm.models.checkpoint.matching import matching_tensors, new_name
from jaxllm.models.checkpoint.source import Source, source_of
from jaxllm.models.checkpoint.weight_files import tensors_in
from jaxllm.models.checkpoint.weight_target import checkpoint_slots
from jaxllm.models.checkpoint.weights import load_arrays
from jaxllm.models.errors import ModelError
from jaxllm.models.layers.parameter import ParameterSpec

if TYPE_CHECKING:
    from jaxllm.models.quantization.format import Format

Model = TypeVar("Model", bound=nnx.Module)


def load_into(
    model: Model,
    folder: Path,
    names: Mapping[str, str | Source],
    *,
    ignored: Sequence[str] = (),
    ignored_beginnings: Sequence[str] = (),
    optional_prefix: str = "",
    renamed: Mapping[str, str] | None = None,
    load_format: str = "auto",
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    given: Mapping[tuple[str | int, ...], np.ndarray] | None = None,
    known_format: "Format | None" = None,
    first_layer: int = 0,
    elsewhere: Callable[[str], bool] | None = None,
) -> Model:
    """Read the checkpoint in `folder` to the devices, one tensor at a time, for the modules called `names` there.

    Tensors whose names end with one of `ignored`, or begin with one of `ignored_beginnings`, may be there without being
    used. A checkpoint may leave `optional_prefix` out of all its names, and beginnings that are `renamed` are read as
    others. `load_format` 'safetensors' reads no other files, and 'dummy' makes random weights from
    `seed` instead and ignores the folder. `progress` is called with the bytes done and the bytes in total. `given` are
    tensors, by the path of their parameter in the model, that are not looked for. `known_format` is how it keeps
    matrices of few bits. Whatever is to become one, and is none there, is rounded. Of a part of a model `first_layer`
    is the number of its first layer, and tensors may be there that are `elsewhere`.

    Raises `ModelError` naming the tensor or file that is missing, unexpected, wrongly shaped or corrupt.
    """
    graph, state = nnx.split(model)
    flat = nnx.to_flat_state(state)
    given = given or {}
    specs = {path: ParameterSpec.of(variable) for path, variable in flat}
    sought = {path: spec for path, spec in specs.items() if path not in given}
    if load_format == "dummy":
        # Only here: starts with weights are faster without the import.
        from jaxllm.models.checkpoint.random_weights import random_arrays

        slots = checkpoint_slots(sought, names, first_layer)
        arrays = random_arrays(sought, slots, seed, progress)
    elif load_format in ("auto", "safetensors", "gguf"):
        needs_names = optional_prefix or ignored_beginnings
        tensors = tensors_in(folder, load_format) if needs_names else []
        found = [new_name(tensor.name, renamed or {}) for tensor in tensors]
        if optional_prefix and not any(name.startswith(optional_prefix) for name in found):
            names = {ours: _without(optional_prefix, theirs) for ours, theirs in names.items()}
        slots = checkpoint_slots(sought, names, first_layer)
        unused = [name for name in found if name.startswith(tuple(ignored_beginnings)) and name not in slots]
        matching = matching_tensors(
            folder, sought, slots, (*ignored, *unused), renamed or {}, load_format, known_format, elsewhere
        )
        arrays = load_arrays(matching, sought, progress)
    elif load_format == "sharded_state":
        raise ModelError("load format 'sharded_state' is for models that generate; read this one from its checkpoint")
    else:
        raise ModelError(f"unknown load format {load_format!r} (known: auto, safetensors, gguf, dummy)")
    arrays.update({path: whole_parameter(specs[path], tensor) for path, tensor in given.items()})
    leaves = [(path, variable.replace(arrays[path])) for path, variable in flat]
    return nnx.merge(graph, nnx.from_flat_state(leaves))


def _without(prefix: str, name: str | Source) -> Source:
    """The name of a module where a checkpoint leaves out the prefix."""
    source = source_of(name)
    return replace(source, name=source.name.removeprefix(prefix))
