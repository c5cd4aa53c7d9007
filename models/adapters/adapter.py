"""An adapter in host memory, as a model's parameters lie."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from jaxllm.models.adapters.config import AdapterConfig
from jaxllm.models.adapters.places import Kind
from jaxllm.models.checkpoint.weight_target import ParameterPath, WeightTarget

CLASSIFIER: Final = ("head", "out")
"""The path of a pooling model's classifier."""

Key = tuple[ParameterPath, int | None]
"""A parameter's path in the model, and the number of a layer in it, if it stacks several."""


@dataclass(frozen=True, eq=False)
class LowRank:
    """What an adapter adds to a matrix [out, in] of the model, or to one of the parts of a merged one: `b @ a`.

    Where a checkpoint has one matrix of what are several here, each has the same A.
    """

    target: WeightTarget
    """Where it goes: `path`, `layer`, and `part` of each of the `blocks` of a merged parameter."""
    kind: Kind
    module: str
    """The checkpoint's name."""
    a: np.ndarray
    """[r, in]"""
    b: np.ndarray
    """[out, r], multiplied by alpha / r, or alpha / sqrt(r)."""
    bias: np.ndarray | None = None
    """float32 [out], added to the output, multiplied like `b`."""
    magnitude: np.ndarray | None = None
    """float32 [out], the lengths of the rows of the matrix with the adapter (DoRA)."""

    @property
    def key(self) -> Key:
        """The parameter, and the layer."""
        return self.target.path, self.target.layer

    @property
    def rank(self) -> int:
        """R"""
        return len(self.a)

    @property
    def num_bytes(self) -> int:
        """Of all arrays."""
        arrays = (self.a, self.b, self.bias, self.magnitude)
        return sum(array.nbytes for array in arrays if array is not None)


def rows_of(parameter: np.ndarray, target: WeightTarget) -> np.ndarray:
    """The rows of one layer's parameter [rows, ...] that are a target's: a view [blocks, rows of each, ...]."""
    if target.part is None:
        return parameter[None]
    blocks = parameter.reshape(target.blocks, -1, *parameter.shape[1:])
    return blocks[:, target.part.start : target.part.start + target.part.size]


@dataclass(frozen=True, eq=False)
class Replaced:
    """A tensor of the adapter that stands in the place of one of the model's: a bias, or one of `modules_to_save`."""

    target: WeightTarget
    name: str
    """The checkpoint's."""
    values: np.ndarray
    """float32, in the form of the parameter's part."""


@dataclass(frozen=True, eq=False)
class TokenRows:
    """Rows of an embedding that are others with the adapter."""

    path: ParameterPath
    indices: tuple[int, ...]
    values: np.ndarray
    """float32 [rows, D]"""


@dataclass(frozen=True, eq=False)
class Adapter:
    """All of it. Nothing refers to the files any more."""

    config: AdapterConfig
    digest: str
    """sha256 of the configuration and of all tensors, in hexadecimal digits."""
    low_rank: tuple[LowRank, ...]
    replaced: tuple[Replaced, ...] = ()
    token_rows: tuple[TokenRows, ...] = ()
    skipped: tuple[str, ...] = ()
    """Modules with tensors for a part of the checkpoint that this model does not have, such as an image encoder."""

    @property
    def rank(self) -> int:
        """The largest."""
        return max((each.rank for each in self.low_rank), default=0)

    @property
    def num_labels(self) -> int | None:
        """Labels of the classifier that it brings along, if it does."""
        return next((len(each.values) for each in self.replaced if each.target.path[:2] == CLASSIFIER), None)

    @property
    def num_bytes(self) -> int:
        """Of all arrays."""
        others = [each.values.nbytes for each in self.replaced] + [each.values.nbytes for each in self.token_rows]
        return sum(each.num_bytes for each in self.low_rank) + sum(others)

    @property
    def changed(self) -> tuple[Key, ...]:
        """The parameters, and their layers, that have a low-rank product, each once."""
        return tuple(dict.fromkeys(each.key for each in self.low_rank))

    def parts(self, path: ParameterPath, layer: int | None) -> tuple[LowRank, ...]:
        """What is added to a parameter, by its parts."""
        return tuple(each for each in self.low_rank if each.key == (path, layer))

    def joined(self, path: ParameterPath, layer: int | None, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """One product for a whole parameter of so many `rows`: A [R, in] and B [rows, R], of the arrays' type.

        Different A of its parts lie one after the other, and the same one only once; B is zero where a part has none.
        """
        parts = self.parts(path, layer)
        distinct: dict[int, int] = {}
        a: list[np.ndarray] = []
        for each in parts:
            if id(each.a) not in distinct:
                distinct[id(each.a)] = sum(map(len, a))
                a.append(each.a)
        b = np.zeros((rows, sum(map(len, a))), parts[0].b.dtype)
        for each in parts:
            start = distinct[id(each.a)]
            own = rows_of(b, each.target)[..., start : start + each.rank]
            own[...] = each.b.reshape(own.shape)
        return np.concatenate(a), b

    def delta(self, path: ParameterPath, layer: int | None, shape: Sequence[int]) -> np.ndarray:
        """What is added to a weight of this `shape` (rows, inputs), float32. Only without magnitudes."""
        out = np.zeros(tuple(shape), np.float32)
        for each in self.parts(path, layer):
            assert each.magnitude is None, "what is added depends on the weight"
            own = rows_of(out, each.target)
            own += _product(each).reshape(own.shape)
        return out

    def merged(self, path: ParameterPath, layer: int | None, weight: np.ndarray) -> np.ndarray:
        """A weight [rows, inputs] with the adapter in it, float32. Biases and whole tensors are others' work."""
        out = weight.astype(np.float32)
        for each in self.parts(path, layer):
            own = rows_of(out, each.target)
            own += _product(each).reshape(own.shape)
            if each.magnitude is not None:
                length = np.linalg.norm(own, axis=-1)
                own *= (each.magnitude.reshape(length.shape) / np.where(length == 0, 1, length))[..., None]
        return out


def _product(low_rank: LowRank) -> np.ndarray:
    found: np.ndarray = low_rank.b.astype(np.float32) @ low_rank.a.astype(np.float32)
    return found
