"""Tensors of vision models that lie in another order in checkpoints."""

from dataclasses import dataclass

import numpy as np

from jaxllm.models.checkpoint.tensor_source import Shape, TensorTransform, Whole


@dataclass(frozen=True)
class LastRowFirst:
    """A matrix whose last row comes before the others."""

    def shape_of(self, wanted: Shape) -> Shape:
        """The same."""
        return wanted

    def __call__(self, tensor: np.ndarray, wanted: Shape) -> np.ndarray:
        """A copy."""
        return np.roll(tensor, 1, axis=0)


@dataclass(frozen=True)
class PairsApart:
    """The rows of heads of `head_size` whose pairs are neighbours; what is wanted has them half a head apart."""

    head_size: int

    def shape_of(self, wanted: Shape) -> Shape:
        """The same."""
        return wanted

    def __call__(self, tensor: np.ndarray, wanted: Shape) -> np.ndarray:
        """A copy."""
        heads = tensor.reshape(-1, self.head_size // 2, 2, *wanted[1:])
        return np.ascontiguousarray(heads.swapaxes(1, 2)).reshape(wanted)


@dataclass(frozen=True)
class AxialPairs:
    """Rows of heads whose pairs are neighbours and turn by column and row alternately, which `part` takes.

    What is wanted has pairs half a head apart, and those that turn by the row before the others.
    """

    head_size: int
    part: TensorTransform = Whole()

    def shape_of(self, wanted: Shape) -> Shape:
        """That of the part's source."""
        return self.part.shape_of(wanted)

    def __call__(self, tensor: np.ndarray, wanted: Shape) -> np.ndarray:
        """A copy."""
        heads = self.part(tensor, wanted).reshape(-1, self.head_size // 4, 2, 2, *wanted[1:])
        return np.ascontiguousarray(heads[:, :, ::-1].swapaxes(1, 3)).reshape(wanted)
