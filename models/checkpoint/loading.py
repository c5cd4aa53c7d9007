"""Filling a model, which was built from shapes, with parameters."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from flax import nnx

from jaxllm.models.checkpoint import weights
from jaxllm.models.checkpoint.host_parameter import whole_parameter
from jaxllm.models.checkpoint.random_weights import random_arrays
from jaxllm.models.checkpoint.safetensors_file import Tensor, read_header
from jaxllm.models.errors import ModelError
from jaxllm.models.layers.parameter import ParameterSpec

Model = TypeVar("Model", bound=nnx.Module)


def load_into(
    model: Model,
    folder: Path,
    names: Mapping[str, str],
    *,
    num_layers: int,
    ignored: Sequence[str] = (),
    ignored_beginnings: Sequence[str] = (),
    optional_prefix: str = "",
    load_format: str = "auto",
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    given: Mapping[tuple[str | int, ...], np.ndarray] | None = None,
) -> Model:
    """Read the checkpoint in `folder` to the devices, one tensor at a time, for the modules called `names` there.

    Tensors whose names end with one of `ignored`, or begin with one of `ignored_beginnings`, may be there without being
    used. A checkpoint may leave `optional_prefix` out of all its names. `load_format` 'dummy' makes random weights from
    `seed` instead and ignores the folder. `progress` is called with the bytes done and the bytes in total. `given` are
    tensors, by the path of their parameter in the model, that are not looked for.

    Raises `ModelError` naming the tensor or file that is missing, unexpected, wrongly shaped or corrupt.
    """
    graph, state = nnx.split(model)
    flat = nnx.to_flat_state(state)
    given = given or {}
    specs = {path: ParameterSpec.of(variable) for path, variable in flat}
    sought = {path: spec for path, spec in specs.items() if path not in given}
    if load_format == "dummy":
        slots = weights.checkpoint_slots(sought, names, num_layers)
        arrays = random_arrays(sought, slots, seed, progress)
    elif load_format in ("auto", "safetensors"):
        found = [tensor.name for tensor in tensors_in(folder)] if optional_prefix or ignored_beginnings else []
        if optional_prefix and not any(name.startswith(optional_prefix) for name in found):
            names = {ours: theirs.removeprefix(optional_prefix) for ours, theirs in names.items()}
        slots = weights.checkpoint_slots(sought, names, num_layers)
        unused = [name for name in found if name.startswith(tuple(ignored_beginnings)) and name not in slots]
        arrays = weights.load_arrays(folder, sought, slots, (*ignored, *unused), progress)
    else:
        raise ModelError(f"unknown load format {load_format!r} (known: auto, safetensors, dummy)")
    arrays.update({path: whole_parameter(specs[path], tensor) for path, tensor in given.items()})
    leaves = [(path, variable.replace(arrays[path])) for path, variable in flat]
    return nnx.merge(graph, nnx.from_flat_state(leaves))


def tensors_in(folder: Path) -> list[Tensor]:
    """All tensors of a checkpoint. Raises `ModelError`."""
    return [tensor for file in weights.checkpoint_files(folder) for tensor in read_header(file)]
