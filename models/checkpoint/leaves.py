"""The parameters of a model in the order of the programs' arguments."""

import jax
from flax import nnx

from jaxllm.models.checkpoint.weight_target import ParameterPath
from jaxllm.models.layers.parameter import ParameterSpec


def leaf_specs(model: nnx.Module) -> dict[ParameterPath, ParameterSpec]:
    """Facts for loading about each parameter, by its path, in the order of `jax.tree.leaves`."""
    graph, state = nnx.split(model)
    flat = nnx.to_flat_state(state)
    # A flat state may have another order.
    numbered = [(path, variable.replace(number)) for number, (path, variable) in enumerate(flat)]
    order = jax.tree.leaves(nnx.split(nnx.merge(graph, nnx.from_flat_state(numbered)))[1])
    return {flat[number][0]: ParameterSpec.of(flat[number][1]) for number in order}


def shown(path: ParameterPath) -> str:
    """A parameter's name."""
    return ".".join(map(str, path))
