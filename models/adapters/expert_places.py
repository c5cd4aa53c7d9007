"""Where adapters of routed experts go in a model, by the names that trainers have for these."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from jaxllm.models.adapters.names import core_of
from jaxllm.models.checkpoint.quantized_tensors import rows_of_all, taken_rows
from jaxllm.models.checkpoint.tensor_source import OfExpert, Transposed
from jaxllm.models.checkpoint.weight_target import Slots, Specs, WeightTarget, layers_of
from jaxllm.models.layers.expert_slots import expert_slot_bytes
from jaxllm.models.layers.parameter import Merged

GATE, UP, DOWN = "expert_gate", "expert_up", "expert_down"

PARTS: Final[Mapping[str, str]] = {
    "gate_proj": GATE,
    "up_proj": UP,
    "down_proj": DOWN,
    "w1": GATE,
    "w3": UP,
    "w2": DOWN,
}
"""Layers of one expert, in models whose checkpoints have all experts in one tensor."""

_ONE: Final = re.compile(r"(?P<module>.+\.experts\.(?P<expert>\d+)\.(?P<layer>[^.]+))")
_ALL: Final = re.compile(r"(?P<module>.+\.experts)(?:\.base_layer)*")


@dataclass(frozen=True)
class Stacked:
    """A parameter that has all experts' matrices, as transformers 5 has them: `outputs` of an expert, and `inputs`."""

    name: str
    parts: tuple[str, ...]
    outputs: int
    inputs: int


class ExpertLayer:
    """The experts of one layer."""

    def __init__(self, name: str) -> None:
        """`name` is what those of its modules begin with."""
        self.name = name
        self.targets: dict[str, dict[int, WeightTarget]] = {}
        """By the name of the part, and the number of the expert."""

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.targets[DOWN])

    @property
    def is_transposed(self) -> bool:
        """Whether checkpoints have the matrices as (in, out)."""
        take = self.targets[DOWN][0].take
        return isinstance(take, OfExpert) and isinstance(take.then, Transposed)

    def stacked(self) -> tuple[Stacked, Stacked]:
        """The parameters of all experts."""
        wide = tuple(part for part in (GATE, UP) if part in self.targets)
        own = self.targets[wide[0]][0]
        down = self.targets[DOWN][0]
        name = "gate_up_proj" if len(wide) > 1 else "up_proj"
        return (
            Stacked(name, wide, own.shape[0] * len(wide), own.shape[1]),
            Stacked("down_proj", (DOWN,), down.shape[0], down.shape[1]),
        )

    def rows(self, stacked: Stacked, part: str, expert: int, array: np.ndarray) -> np.ndarray:
        """The rows of a part, of one expert's [outputs, ...] of a parameter, in the order of the model's."""
        target = self.targets[part][expert]
        rows = target.shape[0]
        inner = target.take.then if isinstance(target.take, OfExpert) else None
        if inner is not None and rows_of_all(inner, rows) == len(array):
            return target.rows.expand(taken_rows(inner, array, rows))
        first = stacked.parts.index(part) * rows
        return target.rows.expand(array[first : first + rows])


@dataclass(frozen=True)
class ExpertModule:
    """A module of routed experts: one layer of one expert, or all that a layer of the model has."""

    module: str
    layer: ExpertLayer
    part: str | None = None
    expert: int = 0


class ExpertPlaces:
    """The routed experts of a model."""

    def __init__(self, slots: Slots, specs: Specs) -> None:
        self._specs = specs
        self.layers: dict[str, ExpertLayer] = {}
        """By what the names of a layer's modules begin with."""
        self._names: dict[str, tuple[str, int]] = {}
        for tensor, targets in slots.items():
            for target in targets:
                part = target.part
                if part is None or part.expert is None or target.path[-1] != "weight":
                    continue
                layer = self.layers.setdefault(_layer_of(tensor), ExpertLayer(_layer_of(tensor)))
                layer.targets.setdefault(part.name, {})[part.expert] = target
                self._names[core_of(tensor.removesuffix(".weight"))] = part.name, part.expert

    def find(self, module: str) -> ExpertModule | None:
        """A module by its name; None where it is none of the model's routed experts."""
        layer = self.layers.get(_layer_of(f"{module}."))
        if layer is None:
            return None
        if found := _ALL.fullmatch(module):
            return ExpertModule(found["module"], layer)
        known = self._names.get(core_of(module))
        if known is not None:
            return ExpertModule(module, layer, *known)
        found = _ONE.fullmatch(module)
        part = None if found is None else PARTS.get(found["layer"])
        if found is None or part not in layer.targets or int(found["expert"]) not in layer.targets[part]:
            return None
        return ExpertModule(module, layer, part, int(found["expert"]))

    def slot_bytes(self, rank: int, dtype: str) -> int:
        """What all experts' matrices of one slot take, on all devices together."""
        total = 0
        for path, spec in self._specs.items():
            if path[-1] != "weight" or not isinstance(spec.rows, Merged) or spec.rows.experts is None:
                continue
            layers, is_stacked = layers_of(path[:-1])
            total += expert_slot_bytes((spec.rows, spec.shape[1]), len(layers) if is_stacked else 1, rank, dtype)
        return total


def _layer_of(name: str) -> str:
    """What the names of a layer's tensors begin with, without what wrappers put before it; '' outside of layers."""
    parts = core_of(name).split(".")
    number = next((place for place, part in enumerate(parts) if part.isdecimal()), -1)
    return ".".join(parts[: number + 1])
