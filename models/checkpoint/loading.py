"""Filling a model, which was built from shapes, with parameters."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from flax import nnx

from jaxllm.models.checkpoint.checkpoint import Checkpoint
from jaxllm.models.checkpoint.host_parameter import whole_parameter
from jaxllm.models.checkpoint.matching import match_checkpoint
from jaxllm.models.checkpoint.names import CheckpointNames
from jaxllm.models.checkpoint.parameter_loader import load_arrays
from jaxllm.models.errors import ModelError
from jaxllm.models.layers.parameter import ParameterSpec

if TYPE_CHECKING:
    from jaxllm.models.checkpoint.parameter_loader import Change
    from jaxllm.models.checkpoint.random_weights import RandomWeights

    WeightSource = Checkpoint | RandomWeights

Model = TypeVar("Model", bound=nnx.Module)


def open_weights(folder: Path, load_format: str = "auto", seed: int = 0) -> "WeightSource":
    """The meaning of the option `load_format`: the checkpoint in `folder`, or 'dummy' weights, random from `seed`.

    Reads nothing yet. Raises `ModelError` for a format that is not known, or that only saved states have.
    """
    if load_format == "dummy":
        # Only here: starts with weights are faster without the import.
        from jaxllm.models.checkpoint.random_weights import RandomWeights

        return RandomWeights(seed)
    if load_format == "sharded_state":
        raise ModelError("load format 'sharded_state' requires a generative model; load this one from its checkpoint")
    if load_format not in ("auto", "safetensors", "gguf"):
        raise ModelError(f"unknown load format {load_format!r} (known: auto, safetensors, gguf, dummy)")
    return Checkpoint(folder, load_format)


def load_into(
    model: Model,
    source: "WeightSource",
    names: CheckpointNames,
    *,
    given: Mapping[tuple[str | int, ...], np.ndarray] | None = None,
    progress: Callable[[int, int], None] | None = None,
    change: "Change | None" = None,
) -> Model:
    """The model with the parameters of a checkpoint, read to the devices one tensor at a time, or with random ones.

    `given` are tensors, by the path of their parameter in the model, that are not looked for. `progress` is called with
    the bytes done and the bytes in total. With a `change` parameters have other values than the checkpoint's.

    Raises `ModelError` naming the tensor or file that is missing, unexpected, wrongly shaped or corrupt.
    """
    graph, state = nnx.split(model)
    flat = nnx.to_flat_state(state)
    given = given or {}
    specs = {path: ParameterSpec.of(variable) for path, variable in flat}
    sought = {path: spec for path, spec in specs.items() if path not in given}
    if isinstance(source, Checkpoint):
        arrays = load_arrays(match_checkpoint(source, names, sought), sought, progress, change=change)
    else:
        arrays = source.arrays(sought, names.slots(sought), progress)
    arrays.update({path: whole_parameter(specs[path], tensor) for path, tensor in given.items()})
    leaves = [(path, variable.replace(arrays[path])) for path, variable in flat]
    return nnx.merge(graph, nnx.from_flat_state(leaves))
