"""Adapters of routed experts, in PEFT's two forms.

Where experts are modules, each has an A and a B (Mixtral before transformers 5). Where they are parameters of three
axes, A and B of all experts are one matrix each, `target_parameters` of PEFT: A [E * r, in] has the rows of one expert
after the other, B [out, r * E] the columns of all experts for one row of A after the other. PEFT before 0.19 takes the
last axis of a parameter for the outputs, whichever it is, and so A and B change places in most models.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from jaxllm.models.adapters.adapter import LowRank
from jaxllm.models.adapters.config import AdapterConfig
from jaxllm.models.adapters.errors import AdapterError
from jaxllm.models.adapters.expert_places import ExpertModule, ExpertPlaces, Stacked
from jaxllm.models.adapters.names import Role
from jaxllm.models.checkpoint.safetensors_file import Tensor
from jaxllm.models.checkpoint.weight_target import WeightTarget

_VECTORS: Final[tuple[Role, ...]] = ("b_bias", "magnitude")

SWAPPED_SINCE: Final = (0, 19)
"""The first version of PEFT that multiplies A with the inputs of such a parameter."""

Fault = Callable[[Tensor, str], AdapterError]
Vectors = Callable[[Role, int], np.ndarray | None]
"""Reads the tensor of this role, float32 with so many numbers, if there is one."""
Read = Callable[[Tensor], np.ndarray]


@dataclass(frozen=True)
class ExpertLimit:
    """What slots have for routed experts: the largest rank, and the type of the matrices."""

    rank: int
    dtype: str


@dataclass(frozen=True)
class ExpertReading:
    """Adapters of experts on their way."""

    config: AdapterConfig
    places: ExpertPlaces
    dtype: np.dtype[Any]
    limit: ExpertLimit | None
    """None: any rank is taken."""
    read: Read
    fault: Fault
    modules: dict[str, ExpertModule] = field(default_factory=dict)
    """By a name that is the same whatever the tool calls it."""
    taken: dict[tuple[Any, ...], Tensor] = field(default_factory=dict)
    """By what they are for."""

    def find(self, module: str) -> str | None:
        """The name under which a module is among `modules` from now on; None for what is not of routed experts."""
        found = self.places.find(module)
        if found is None:
            return None
        name = f"{found.layer.name}.experts.{found.expert}.{found.part}" if found.part else module
        self.modules[name] = found
        return name

    def missing(self) -> str | None:
        """A module without tensors that the configuration means, if the same of other experts has some."""
        seen = {(each.layer.name, each.part): each for each in self.modules.values() if each.part is not None}
        for each in seen.values():
            assert each.part is not None
            for expert, target in each.layer.targets[each.part].items():
                name = each.module.replace(f".experts.{each.expert}.", f".experts.{expert}.")
                if _key(target) not in self.taken and self.config.targets is not None and self.config.is_target(name):
                    return name
        return None

    def take(self, found: ExpertModule, a: Tensor, b: Tensor, vectors: Vectors) -> list[LowRank]:
        """What a pair of tensors adds; `vectors` gives what else there is for the outputs. Raises `AdapterError`."""
        self._check_vectors(found, a)
        if len(a.shape) != 2 or len(b.shape) != 2:
            raise self.fault(a, f"has shape {list(a.shape)}, and the other half {list(b.shape)}: not two axes each")
        if found.part is None:
            # Raises for those that the configuration does not have.
            for role in _VECTORS:
                vectors(role, 0)
            return self._stacked(found, a, b)
        target = found.layer.targets[found.part][found.expert]
        if not self.config.is_target(found.module):
            raise self.fault(a, f"is for a module that {self.config.source} does not mean: {found.module!r}")
        rank = self.config.rank_of(found.module)
        self._check_rank(a, rank)
        for tensor, wanted in ((a, (rank, target.shape[1])), (b, (target.shape[0], rank))):
            if tensor.shape != wanted:
                raise self.fault(tensor, f"has shape {list(tensor.shape)}, expected {list(wanted)}")
        scaling = np.float32(self.config.scaling_of(found.module))
        made = self._low_rank(target, found.module, self.read(a), target.rows.expand(self.read(b) * scaling), a)
        given = [vectors(role, target.shape[0]) for role in _VECTORS]
        bias, magnitude = (None if values is None else target.rows.expand(values) for values in given)
        return [replace(made, bias=None if bias is None else bias * scaling, magnitude=magnitude)]

    def _check_vectors(self, found: ExpertModule, a: Tensor) -> None:
        """Raise `AdapterError` for magnitudes and biases, but of one expert's layers where these are merged.

        In slots it would be a vector for each output of every expert, and PEFT has none for parameters of all.
        """
        if found.part is not None and self.limit is None:
            return
        for is_set, field_name in ((self.config.use_dora, "use_dora"), (self.config.has_lora_bias, "lora_bias")):
            if is_set:
                what = "have no magnitudes and biases in slots; serve it with --merge-lora, train it without"
                if found.part is None:
                    what = "have no magnitudes and biases where one parameter has all of them; train it without"
                raise self.fault(
                    a,
                    f"is for routed experts, and {field_name!r} is set: they {what}, or leave them out of "
                    "'target_modules'",
                )

    def _stacked(self, found: ExpertModule, a: Tensor, b: Tensor) -> list[LowRank]:
        """Of all experts."""
        own, is_swapped = self._parameter(found, a, b)
        name, count = f"{found.module}.{own.name}", found.layer.count
        if not (self.config.is_target(found.module) or self.config.is_target_parameter(name)):
            raise self.fault(a, f"is for a parameter that {self.config.source} does not mean: {name!r}")
        rank = self.config.rank_of(name)
        if (a.shape[0], b.shape[1]) != (rank * count, rank * count):
            raise self.fault(
                a,
                f"has {a.shape[0]} rows, and the other half {b.shape[1]} columns; expected rank {rank}, as "
                f"{self.config.source} says, times {count} experts",
            )
        if self.limit is not None and not self.limit.rank:
            self._check_rank(a, rank)
        scaling = np.float32(self.config.scaling_of(name))
        rows = self.read(a).reshape(count, rank, -1)
        columns = self.read(b).reshape(-1, rank, count)
        made: list[LowRank] = []
        for expert in range(count):
            of_a, of_b = rows[expert], columns[:, :, expert]
            if is_swapped:
                of_a, of_b = of_b.T, of_a.T
            for part in own.parts:
                target = found.layer.targets[part][expert]
                of_part = found.layer.rows(own, part, expert, of_b * scaling)
                made.append(self._low_rank(target, name, of_a, of_part, a))
        return made

    def _parameter(self, found: ExpertModule, a: Tensor, b: Tensor) -> tuple[Stacked, bool]:
        """Which parameter a pair is for, as its sizes tell, and whether A has its outputs."""
        inner, outer = a.shape[1], b.shape[0]
        all_stacked = found.layer.stacked()
        straight = [each for each in all_stacked if (each.inputs, each.outputs) == (inner, outer)]
        swapped = [each for each in all_stacked if (each.outputs, each.inputs) == (inner, outer)]
        if not straight and not swapped:
            known = ", ".join(f"{each.name} {each.inputs} to {each.outputs}" for each in all_stacked)
            raise self.fault(a, f"and its other half map {inner} to {outer}; the experts have {known}")
        if not straight or not swapped:
            return (straight or swapped)[0], not straight
        if found.layer.is_transposed or _version(self.config) >= SWAPPED_SINCE:
            return straight[0], False
        raise self.fault(
            a,
            f"is for a square matrix, and {self.config.source} has no 'peft_version' of at least 0.19: which of its "
            "axes are the inputs depends on that; merge the adapter into its model, or save it with a newer PEFT",
        )

    def _low_rank(self, target: WeightTarget, module: str, a: np.ndarray, b: np.ndarray, tensor: Tensor) -> LowRank:
        """Without rows of A that meet zeros alone: PEFT joins two adapters to one of twice the rank."""
        key = _key(target)
        if key in self.taken:
            raise self.fault(tensor, f"stands for the same as {self.taken[key].name!r}")
        self.taken[key] = tensor
        used = np.any(b != 0, axis=0, keepdims=False)
        if not used.all():
            used[0] |= not used.any()
            a, b = a[used], b[:, used]
        self._check_rank(tensor, len(a))
        # Copies: a view would keep what all experts have.
        own, other = np.array(a, self.dtype), np.array(b, self.dtype)
        return LowRank(target, "experts", module, own, other)

    def _check_rank(self, tensor: Tensor, rank: int) -> None:
        if self.limit is None or rank <= self.limit.rank:
            return
        size = self.places.slot_bytes(rank, self.limit.dtype)
        has = f"have slots of rank {self.limit.rank}" if self.limit.rank else "have no slots"
        raise self.fault(
            tensor,
            f"is for routed experts, which {has} here: --max-lora-expert-rank {rank} would take {size} bytes "
            f"({size / 2**30:.2f} GiB) in each slot",
        )


def _version(config: AdapterConfig) -> tuple[int, ...]:
    parts = str(config.values.get("peft_version", "0")).split(".")[:2]
    return tuple(int(part) if part.isdecimal() else 0 for part in parts)


def _key(target: WeightTarget) -> tuple[Any, ...]:
    """What is different for each expert and part."""
    assert target.part is not None
    return target.path, target.layer, target.part.name, target.part.expert
