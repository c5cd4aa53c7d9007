"""A weight matrix as an operand: the arrays that hold it, and how it lies there."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import register_dataclass
from jax.typing import DTypeLike

from jaxllm.pallas_kernels.linear.fused import NOTHING, Fused


@dataclass(frozen=True)
class OperandLayout(ABC):
    """How a matrix lies in memory, and how it is multiplied with from there."""

    shape: tuple[int, ...]
    """As checkpoints have it: (out, in) of a matrix."""

    on_each_device: ClassVar[bool] = False
    """Whether a device multiplies with its own part alone, because XLA does not split what it runs."""

    @abstractmethod
    def rows(self, weight: "Weight", index: jax.Array) -> jax.Array:
        """Rows [T, in] of a matrix; an `index` int32 [T] beyond the last one takes that."""

    @abstractmethod
    def multiply(
        self,
        x: jax.Array,
        weight: "Weight",
        num_rows: jax.Array | int | None = None,
        fused: Fused = NOTHING,
        *,
        out_dtype: DTypeLike = jnp.float32,
        platform: str = "cpu",
    ) -> jax.Array:
        """See `linear`; `weight` lies as this says."""


@dataclass(frozen=True)
class WeightLayout(OperandLayout):
    """How a tensor of a checkpoint lies in an array, and what may be done with it there."""

    is_packed: ClassVar[bool]
    """Whether the array has another order than the tensor."""
    in_stack: ClassVar[bool]
    """Whether its kernel finds a layer in the stack [L, ...] of all. Others get a slice, which a kernel would copy."""

    @property
    def rows_per_entry(self) -> int:
        """Rows of the tensor in an entry of the array's first axis."""
        return 1

    @property
    @abstractmethod
    def array_shape(self) -> tuple[int, ...]:
        """Shape of the array."""

    @abstractmethod
    def pack(self, tensor: jax.Array) -> jax.Array:
        """The array of a tensor, or those of several, `[..., *shape]` to `[..., *array_shape]`."""

    @abstractmethod
    def pack_into(self, array: np.ndarray, tensor: np.ndarray) -> None:
        """Write a tensor into its array, on the host."""


@register_dataclass
@dataclass(frozen=True)
class Weight:
    """A matrix [out, in]: its arrays are its own, or those of all layers' matrices, and this is the one of `layer`.

    A quantized matrix has its values in `array`, and its scales and offsets below.
    """

    layout: OperandLayout = field(metadata={"static": True})
    array: jax.Array
    layer: jax.Array | int | None = None
    scales: jax.Array | None = None
    offsets: jax.Array | None = None
    order: jax.Array | None = None
    input_scale: jax.Array | None = None
    """float32 [M], one for each of the matrices that this one is made of; the largest counts."""

    def own(self) -> "Weight":
        """A copy without other layers."""
        if self.layer is None:
            return self

        def own(stack: jax.Array | None) -> jax.Array | None:
            return None if stack is None else stack[self.layer]

        others = own(self.scales), own(self.offsets), own(self.order), own(self.input_scale)
        return Weight(self.layout, self.array[self.layer], None, *others)
