"""Reading an adapter for a model: every tensor finds its place, or is named in an error."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from flax import nnx
from numpy.typing import DTypeLike

from jaxllm.models.adapters.adapter import CLASSIFIER, Adapter, LowRank, Replaced, TokenRows
from jaxllm.models.adapters.config import AdapterConfig
from jaxllm.models.adapters.errors import AdapterError
from jaxllm.models.adapters.expert_reading import ExpertLimit, ExpertReading
from jaxllm.models.adapters.files import MAX_BYTES, TensorReader, check_no_orbax, headers, unknown_name, weights_file
from jaxllm.models.adapters.names import Role, TensorName, parse_name
from jaxllm.models.adapters.places import HEAD, Place, Places
from jaxllm.models.checkpoint.names import CheckpointNames
from jaxllm.models.checkpoint.safetensors_file import Tensor
from jaxllm.models.checkpoint.weight_target import WeightTarget

MAX_RANK: Final = 512
"""The largest that the reference serves."""

_LOW_RANK: Final = ("a", "b", "b_bias", "magnitude")
_OTHER_EXPERTS: Final = "is for routed experts, in a form that is not read"


@dataclass
class _Module:
    """The tensors of one module, by what they are to it."""

    name: str
    """As the tool has it."""
    is_embedding: bool = False
    is_transposed: bool = False
    tensors: dict[Role, Tensor] = field(default_factory=dict)


def read_adapter(
    folder: Path,
    model: nnx.Module,
    names: CheckpointNames,
    *,
    dtype: DTypeLike = np.float32,
    max_rank: int = MAX_RANK,
    max_bytes: int = MAX_BYTES,
    experts: ExpertLimit | None = None,
) -> Adapter:
    """The adapter in `folder` for a model whose checkpoints have these `names`; `model` may have shapes for parameters.

    A and B come in `dtype`, everything else in float32. Files of more than `max_bytes` are not read, and ranks above
    `max_rank` not taken, nor those of routed experts above the limit for `experts`.

    Raises `AdapterError` naming the field of the configuration that is not supported, or the tensor without a place,
    of another shape or rank, without its other half, or with numbers that are not finite; also where modules that the
    configuration means have no tensors, or the adapter changes nothing.
    """
    check_no_orbax(folder)
    config = AdapterConfig.read(folder)
    path = weights_file(folder, max_bytes)
    return _Reading(config, path, Places(model, names), np.dtype(dtype), max_rank, experts).adapter()


class _Reading:
    """One adapter on its way."""

    def __init__(
        self,
        config: AdapterConfig,
        path: Path,
        places: Places,
        dtype: np.dtype[Any],
        max_rank: int,
        experts: ExpertLimit | None,
    ) -> None:
        self._config, self._path, self._places = config, path, places
        self._dtype, self._max_rank = dtype, max_rank
        self._reader = TensorReader(config.values)
        self._experts = ExpertReading(config, places.experts, self._dtype, experts, self._reader.read, self._error)
        self._modules: dict[str, _Module] = {}
        self._skipped: list[str] = []
        self._has_other_stages = False
        self._low_rank: list[LowRank] = []
        self._replaced: list[Replaced] = []
        self._token_rows: list[TokenRows] = []

    def adapter(self) -> Adapter:
        """All of it."""
        for tensor in headers(self._path).values():
            self._sort(tensor)
        for module in sorted(self._modules):
            self._take(module, self._modules[module])
        if not (self._low_rank or self._replaced or self._token_rows or self._has_other_stages):
            why = f"; those of {self._skipped[0]!r} are for a part that it does not have" if self._skipped else ""
            raise AdapterError(f"{self._path}: no tensor is for this model{why}")
        self._check_all_there()
        return Adapter(
            self._config,
            self._reader.digest,
            tuple(self._low_rank),
            tuple(self._replaced),
            tuple(self._token_rows),
            tuple(dict.fromkeys(self._skipped)),
        )

    def _error(self, tensor: Tensor, problem: str) -> AdapterError:
        return AdapterError(f"{self._path}: tensor {tensor.name!r} {problem}")

    def _sort(self, tensor: Tensor) -> None:
        """Find the module of a tensor."""
        parsed = parse_name(tensor.name, is_mlx=self._config.tool == "mlx")
        if parsed is None:
            raise self._error(tensor, unknown_name(tensor.name))
        if parsed.role == "unused":
            return
        found = self._find(tensor, parsed)
        if found is None:
            # All stages of a model have one digest.
            self._reader.read(tensor)
            return
        own = self._modules.setdefault(found, _Module(parsed.module, is_transposed=parsed.is_transposed))
        own.is_embedding |= parsed.is_embedding
        if parsed.role in own.tensors:
            raise self._error(tensor, f"stands for the same as {own.tensors[parsed.role].name!r}")
        own.tensors[parsed.role] = tensor

    def _find(self, tensor: Tensor, parsed: TensorName) -> str | None:
        """The checkpoint's name of a tensor's module; None where it is for a part that this model does not have."""
        if parsed.role in _LOW_RANK and (expert := self._experts.find(parsed.module)) is not None:
            return expert
        try:
            found = self._places.find(parsed.module)
        except AdapterError as error:
            raise self._error(tensor, f"has no one place: {error}") from None
        if found is not None:
            return found
        if self._places.is_of_other_stage(parsed.module):
            self._has_other_stages = True
            return None
        if self._places.is_elsewhere(parsed.module):
            self._skipped.append(parsed.module)
            return None
        if self._places.is_head(parsed.module) and self._places.is_tied:
            raise self._error(tensor, "is for an output layer, and this model's is its embedding")
        is_routed = ".experts" in parsed.module or "switch_mlp" in parsed.module
        no_module = f"has no place: this model has no module {parsed.module!r}"
        raise self._error(tensor, _OTHER_EXPERTS if is_routed else no_module)

    def _take(self, module: str, own: _Module) -> None:
        """Read a module's tensors."""
        if "a" in (tensors := own.tensors) or "b" in tensors:
            self._take_low_rank(module, own)
        for role in ("b_bias", "magnitude"):
            if role in tensors and "a" not in tensors:
                raise self._error(tensors[role], "has no A and B beside it")
        if "token_rows" in tensors:
            self._take_token_rows(module, own, tensors["token_rows"])
        for role in ("weight", "bias"):
            if role in tensors:
                self._take_whole(f"{module}.{role}", own, role, tensors[role])

    def _take_low_rank(self, module: str, own: _Module) -> None:
        for role, other in (("a", "B"), ("b", "A")):
            if role not in own.tensors:
                present = own.tensors["b" if role == "a" else "a"]
                raise self._error(present, f"has no {'A' if other == 'B' else 'B'} beside it")
        a, b = own.tensors["a"], own.tensors["b"]
        if module in self._experts.modules:
            self._low_rank += self._experts.take(self._experts.modules[module], a, b, partial(self._vector, own))
            return
        places = self._places_of(module, own, a)
        if own.is_transposed and places[0].kind == "embedding":
            # Rows of mlx's A are those of the embedding, as columns of PEFT's are.
            a, b, own.is_transposed = b, a, False
        is_transposed = own.is_transposed or own.is_embedding
        self._check_shapes(own, places[0], a, b, is_transposed=is_transposed)
        scaling = self._config.scaling_of(own.name)
        of_a, of_b = self._reader.read(a), self._reader.read(b)
        if is_transposed:
            of_a, of_b = of_a.T, of_b.T
        rounded, scaled = np.ascontiguousarray(of_a.astype(self._dtype)), of_b * np.float32(scaling)
        vectors = {role: self._vector(own, role, places[0].tensor_rows) for role in ("b_bias", "magnitude")}
        for place in places:
            of_place = {role: None if vector is None else place.rows(vector) for role, vector in vectors.items()}
            bias = of_place["b_bias"]
            self._low_rank.append(
                LowRank(
                    place.target,
                    place.kind,
                    module,
                    rounded,
                    place.rows(scaled).astype(self._dtype),
                    None if bias is None else bias * np.float32(scaling),
                    of_place["magnitude"],
                )
            )

    def _places_of(self, module: str, own: _Module, tensor: Tensor) -> Sequence[Place]:
        """Where a module's matrix is."""
        places = self._places.weights.get(module, ())
        if not places or places[0].tensor_rows is None:
            raise self._error(tensor, f"has no place: module {module!r} has no matrix that is only multiplied with")
        if (kind := places[0].kind) == "experts":
            raise self._error(tensor, _OTHER_EXPERTS)
        if kind == "shared":
            raise self._error(tensor, "is for a block that several layers have in common, which has no adapters")
        if own.is_embedding != (kind == "embedding") and not own.is_transposed:
            raise self._error(tensor, f"is {'' if own.is_embedding else 'not '}for an embedding, other than {module!r}")
        if not self._config.is_target(own.name):
            raise self._error(tensor, f"is for a module that {self._config.source} does not mean: {own.name!r}")
        return places

    def _check_shapes(self, own: _Module, place: Place, a: Tensor, b: Tensor, *, is_transposed: bool) -> None:
        """Raise `AdapterError` for a tensor of another rank or shape."""
        rank, rows, columns = self._config.rank_of(own.name), place.tensor_rows, place.columns
        assert rows is not None
        given = a.shape[is_transposed] if len(a.shape) == 2 else rank
        if given != rank:
            raise self._error(a, f"has rank {given}, and {self._config.source} says {rank}")
        if rank > self._max_rank:
            raise self._error(a, f"has rank {rank}; at most {self._max_rank} is taken")
        for tensor, shape in ((a, (rank, columns)), (b, (rows, rank))):
            wanted = shape[::-1] if is_transposed else shape
            if tensor.shape != wanted:
                raise self._error(tensor, f"has shape {list(tensor.shape)}, expected {list(wanted)}")

    def _vector(self, own: _Module, role: Role, rows: int | None) -> np.ndarray | None:
        """A value for each output of the checkpoint's matrix, float32 [rows], if there are such."""
        tensor, says = own.tensors.get(role), {"b_bias": self._config.has_lora_bias, "magnitude": self._config.use_dora}
        field_name = {"b_bias": "lora_bias", "magnitude": "use_dora"}[role]
        if tensor is None:
            if says[role]:
                raise self._error(own.tensors["a"], f"has no {role} beside it, and {field_name!r} is set")
            return None
        if not says[role]:
            raise self._error(tensor, f"is there, and {self._config.source} does not set {field_name!r}")
        if int(np.prod(tensor.shape)) != rows:
            raise self._error(tensor, f"has shape {list(tensor.shape)}, expected [{rows}]")
        return self._reader.read(tensor).reshape(-1)

    def _take_token_rows(self, module: str, own: _Module, tensor: Tensor) -> None:
        places = self._places.weights.get(module, ())
        indices = next(
            (found for ending, found in self._config.token_indices.items() if own.name.endswith(ending)), None
        )
        if indices is None:
            raise self._error(tensor, f"is there, and {self._config.source} names no 'trainable_token_indices' of it")
        if not places or places[0].kind != "embedding":
            raise self._error(tensor, f"has no place: {module!r} is no embedding")
        target = places[0].target
        if tensor.shape != (len(indices), target.shape[1]):
            raise self._error(tensor, f"has shape {list(tensor.shape)}, expected {[len(indices), target.shape[1]]}")
        if any(not 0 <= index < target.shape[0] for index in indices) or len(set(indices)) < len(indices):
            raise self._error(
                tensor, f"is for tokens {list(indices)[:8]}, which are not different ones of the vocabulary"
            )
        self._token_rows.append(TokenRows(target.path, indices, self._reader.read(tensor)))

    def _take_whole(self, name: str, own: _Module, role: Role, tensor: Tensor) -> None:
        """A tensor in the place of the model's own."""
        config = self._config
        is_embedding = any(place.kind == "embedding" for place in self._places.weights.get(name.rpartition(".")[0], ()))
        is_head = own.name.endswith(HEAD)
        is_bias = role == "bias" and config.bias != "none" and (config.bias == "all" or config.is_target(own.name))
        if not (config.saves(own.name) or is_bias or is_embedding or is_head):
            why = "'bias' is 'none'" if role == "bias" else "it is none of 'modules_to_save'"
            raise self._error(tensor, f"stands in the place of the model's own, and in {config.source} {why}")
        targets = self._places.tensors.get(name, ())
        if not targets:
            raise self._error(tensor, f"has no place: this model has no tensor {name!r}")
        values: np.ndarray | None = None
        for target in (_with_rows(target, tensor) for target in targets):
            if tensor.shape != target.tensor_shape:
                raise self._error(tensor, f"has shape {list(tensor.shape)}, expected {list(target.tensor_shape)}")
            values = self._reader.read(tensor) if values is None else values
            placed = target.rows.expand(target.take(values, target.shape))
            self._replaced.append(Replaced(target, name, np.ascontiguousarray(placed)))

    def _check_all_there(self) -> None:
        """Raise `AdapterError` where a module lacks the tensors that the configuration says it has."""
        if (expert := self._experts.missing()) is not None:
            raise AdapterError(f"{self._path}: module {expert!r} has no tensors, and other experts' have some")
        if self._config.targets is None or self._config.tool == "mlx":
            return
        for module, places in self._places.weights.items():
            is_plain = places[0].kind == "linear" and places[0].tensor_rows is not None and module != HEAD
            if is_plain and self._config.is_target(module) and module not in self._modules:
                raise AdapterError(
                    f"{self._path}: module {module!r} has no tensors, and {self._config.source} means it by "
                    f"'target_modules'"
                )


def _with_rows(target: WeightTarget, tensor: Tensor) -> WeightTarget:
    """A classifier's target with as many rows as the adapter has labels."""
    is_classifier = target.path[:2] == CLASSIFIER and tensor.shape
    return replace(target, shape=(tensor.shape[0], *target.shape[1:])) if is_classifier else target
