"""The description of a format of quantized checkpoints, for models and for loading.

A format knows the checkpoint's own names alone: "model.layers.0.mlp.down_proj.weight" is a matrix, whatever tensors it
is kept in, and called as an ordinary checkpoint would call its one tensor. Loading asks for matrices by these names,
takes the rows that a parameter wants of them, and puts the arrays where the layout wants them.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from jaxllm.models.checkpoint.safetensors_file import Tensor
from jaxllm.pallas_kernels.linear.weight_type import QuantizedMatrix, WeightType


@dataclass(frozen=True)
class MatrixTensor(ABC):
    """A matrix [out, in] of few bits in a checkpoint, found by the headers of files: nothing is read yet.

    Several matrices that a family takes out of one tensor, such as all experts', are one, above each other: [E * out,
    in]. A checkpoint that keeps its matrices as [in, out] gives them transposed.
    """

    name: str
    """Its name in an ordinary checkpoint, ".weight" included."""
    path: Path
    """The file that errors name."""
    shape: tuple[int, int]
    kind: WeightType
    num_bytes: int
    """In the checkpoint."""
    parts: tuple[str, ...]
    """Names of the tensors that it is made of."""

    @abstractmethod
    def read(self) -> QuantizedMatrix:
        """Read it, in a thread of its own. Raises `ModelError` naming the tensor whose numbers cannot be."""


class Format(ABC):
    """How a checkpoint keeps matrices of few bits.

    Formats are frozen dataclasses of plain values: programs are cached under what their model's configuration says.
    """

    @abstractmethod
    def weight_type(self, name: str) -> WeightType | None:
        """The type of the matrix called `name`, as the configuration has it; None: it is an ordinary tensor.

        Asked of all names that a model may have, so of tensors that are no matrices, or are not there. Where shapes
        decide (a group that no matrix divides into), `MatrixTensor.kind` may differ: loading converts what it can
        without loss, see `jaxllm.models.quantization.convert`, and rejects the rest by name.
        """

    @abstractmethod
    def matrices(self, tensors: Mapping[str, Tensor], wanted: Collection[str]) -> Mapping[str, MatrixTensor]:
        """The `wanted` names that are quantized matrices in this checkpoint, whose tensors have these names.

        Their parts disappear from the checkpoint's names. Raises `ModelError`, which names the tensor, where one is
        missing, or has another type or shape than the others ask for. A matrix whose parameter is an ordinary one
        (routers, and layers that have no such products) is asked for, too, and widened.
        """
