"""Where the low-rank matrices of an adapter go in a model, and how they get the form that the weights there have."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from flax import nnx

from jaxllm.models.adapters.expert_places import ExpertPlaces
from jaxllm.models.adapters.names import ModuleNames, core_of
from jaxllm.models.checkpoint.leaves import leaf_specs
from jaxllm.models.checkpoint.names import CheckpointNames
from jaxllm.models.checkpoint.quantized_tensors import rows_of_all, taken_rows
from jaxllm.models.checkpoint.tensor_source import WithoutBias, source_of
from jaxllm.models.checkpoint.weight_target import ParameterPath, WeightTarget
from jaxllm.models.layers.embedding import Embedding
from jaxllm.models.layers.experts import ExpertLinear
from jaxllm.models.layers.linear import Linear

Kind = Literal["linear", "matrix", "embedding", "experts", "shared"]
"""What the module is that a weight belongs to: a `Linear`, one of few that multiply by other means, an embedding,
experts of a mixture, or a block that several layers have in common."""

HEAD: Final = "lm_head"
"""What trainers call an output layer, whatever the checkpoint's name is."""


@dataclass(frozen=True)
class Place:
    """A weight, or a part of one, that an adapter may change."""

    target: WeightTarget
    kind: Kind

    @property
    def tensor_rows(self) -> int | None:
        """Rows of the whole matrix in the checkpoint; None where this place does not have rows of it."""
        return rows_of_all(self.target.take, self.target.shape[0]) if len(self.target.shape) == 2 else None

    @property
    def columns(self) -> int:
        """Inputs."""
        return self.target.shape[1]

    def rows(self, array: np.ndarray) -> np.ndarray:
        """What this place has of an array [rows of the checkpoint's matrix, ...], in the order of the parameter."""
        own = taken_rows(self.target.take, array, self.target.shape[0])
        rows = self.target.rows
        assert rows.columns is None
        return np.ascontiguousarray(rows.expand(own))


class Places:
    """What an adapter may change in a model, by the names of modules in checkpoints."""

    def __init__(self, model: nnx.Module, names: CheckpointNames) -> None:
        """`model` has shapes or arrays for parameters; `names` are those of its checkpoints."""
        # Scales of keys and values are no weights, but they lie alongside them.
        specs = {path: spec for path, spec in leaf_specs(model).items() if path[-1] != "kv_scales"}
        slots = names.slots(specs)
        kinds = _kinds(model)
        self.experts = ExpertPlaces(slots, specs)
        self.names = names
        self.weights: dict[str, Sequence[Place]] = {}
        """Matrices."""
        self.tensors: Mapping[str, Sequence[WeightTarget]] = slots
        """Tensors of any kind."""
        for tensor, targets in slots.items():
            module, _, parameter = tensor.rpartition(".")
            # Zeros in place of a bias that a checkpoint lacks come of the weight, and stay zeros.
            own = [each for each in targets if each.path[-1] != "bias" or not isinstance(each.take, WithoutBias)]
            if parameter == "weight" and all(target.path[-1] == "weight" for target in own):
                self.weights[module] = [Place(target, _kind(target, kinds)) for target in own]
        modules = {name.rpartition(".")[0] for name in slots}
        self._modules = ModuleNames(modules, names.optional_prefix)
        sources = [source_of(source).name for source in names.names.values()]
        self._before = ["", *dict.fromkeys(name.removesuffix(core_of(name)) for name in sources)]
        head = names.names.get("head")
        self._head = None if head is None else source_of(head).name
        self.is_tied = self._head not in modules
        self._seeing = {_first(name) for name, own in slots.items() if {"tower", "sound"} & {*own[0].path[:2]}}

    def find(self, module: str) -> str | None:
        """The checkpoint's name of a module, None where the model has none like it."""
        if self.is_head(module):
            return None if self.is_tied else self._head
        return next(filter(None, map(self._modules.find, self.names.spellings(module))), None)

    def is_head(self, module: str) -> bool:
        """Whether a name is that of an output layer, which the model may have instead of its embedding."""
        is_own = self._head is not None and core_of(module) == core_of(self._head)
        return is_own or module.rpartition(".")[2] == HEAD

    def is_elsewhere(self, module: str) -> bool:
        """Whether a module belongs to a part of the checkpoint that this model does not have.

        What sees or hears in a model has none such, though a tool's names for it may be others than the checkpoint's.
        """
        if self.is_head(module) or not self._seeing.isdisjoint(map(_first, self.names.spellings(module))):
            return False
        names = self._tensors(module)
        return any(map(self.names.may_ignore, [*names, *map(self.names.new_name, names)]))

    def _tensors(self, module: str) -> list[str]:
        """Names that the tensor of a module may have in a checkpoint."""
        return [f"{module}.weight", *(f"{before}{core_of(module)}.weight" for before in self._before)]

    def is_of_other_stage(self, module: str) -> bool:
        """Whether this is a stage of a model, and the module is in another one."""
        elsewhere = self.names.elsewhere
        return elsewhere is not None and any(elsewhere(self.names.new_name(name)) for name in self._tensors(module))


def _first(name: str) -> str:
    """The part of a model that a module or a tensor belongs to."""
    return core_of(name).partition(".")[0]


def _kinds(model: nnx.Module) -> Mapping[ParameterPath, Kind]:
    """Of each matrix's parameter, by its path without the last."""
    found: dict[ParameterPath, Kind] = {}
    for path, module in nnx.iter_modules(model):
        own: ParameterPath = tuple(path)
        if isinstance(module, Linear):
            found[own] = "linear"
        elif isinstance(module, ExpertLinear):
            found[own] = "experts"
        elif isinstance(module, Embedding):
            found[own] = "embedding"
    return found


def _kind(target: WeightTarget, kinds: Mapping[ParameterPath, Any]) -> Kind:
    if target.path[0] == "shared":
        return "shared"
    if target.part is not None and target.part.expert is not None:
        return "experts"
    found: Kind = kinds.get(tuple(target.path[:-1]), "matrix")
    return found
