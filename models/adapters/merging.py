"""A model with an adapter in its weights."""

from typing import Any, TypeVar

import numpy as np
from flax import nnx

from jaxllm.models.adapters.adapter import Adapter, rows_of
from jaxllm.models.adapters.errors import AdapterError
from jaxllm.models.checkpoint.leaves import shown
from jaxllm.models.checkpoint.weight_target import ParameterPath, WeightTarget
from jaxllm.models.layers.parameter import ParameterSpec
from jaxllm.models.sharding import put

Model = TypeVar("Model", bound=nnx.Module)


def merge(model: Model, adapter: Adapter) -> Model:
    """Another model, whose parameters are those of `model` with the adapter in them, added in float32 and rounded.

    Raises `AdapterError` naming a parameter that is quantised or packed, which is not unpacked here, and a module
    without a bias whose adapter has one.
    """
    graph, state = nnx.split(model)
    variables: dict[ParameterPath, Any] = dict(nnx.to_flat_state(state))
    merging = _Merging(variables)
    for whole in adapter.replaced:
        merging.rows(whole.target)[...] = whole.values.reshape(merging.rows(whole.target).shape)
    for path, layer in adapter.changed:
        own = merging.array(path, layer)
        own[...] = adapter.merged(path, layer, own)
    for each in adapter.low_rank:
        if each.bias is not None:
            path = (*each.target.path[:-1], "bias")
            if path not in variables:
                raise AdapterError(
                    f"module {each.module!r} has no bias, and its adapter has one: they cannot be merged"
                )
            rows = rows_of(merging.array(path, each.target.layer), each.target)
            rows += each.bias.reshape(rows.shape)
    for tokens in adapter.token_rows:
        merging.array(tokens.path, None)[list(tokens.indices)] = tokens.values
    flat = [(path, merging.merged(path)) for path in variables]
    return nnx.merge(graph, nnx.from_flat_state(flat))


class _Merging:
    """Parameters on the host, in float32; only those that are asked for are copied."""

    def __init__(self, variables: dict[ParameterPath, Any]) -> None:
        self._variables = variables
        self._copies: dict[ParameterPath, np.ndarray] = {}

    def array(self, path: ParameterPath, layer: int | None) -> np.ndarray:
        """A parameter, or one layer of it, to be written to."""
        if path not in self._copies:
            variable = self._variables[path]
            spec = ParameterSpec.of(variable)
            if spec.matrix is not None or spec.layout.is_packed:
                raise AdapterError(f"parameter {shown(path)} is quantised or packed: adapters are not merged with it")
            self._copies[path] = np.array(variable.get_raw_value(), np.float32)
        found = self._copies[path]
        return found if layer is None else found[layer]

    def rows(self, target: WeightTarget) -> np.ndarray:
        """The rows of a target, to be written to."""
        return rows_of(self.array(target.path, target.layer), target)

    def merged(self, path: ParameterPath) -> Any:
        """The variable with what was written."""
        variable = self._variables[path]
        if path not in self._copies:
            return variable
        before = variable.get_raw_value()
        return variable.replace(put(self._copies[path].astype(before.dtype), before.sharding))
