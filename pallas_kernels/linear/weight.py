"""A weight matrix as an operand: the array that holds it, and how it lies there."""

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
class WeightLayout(ABC):
    """How a tensor of a checkpoint lies in memory, and what may be done with it there."""

    shape: tuple[int, ...]
    """As checkpoints have it: (out, in) of a matrix."""

    is_packed: ClassVar[bool]
    """Whether the array has another order than the tensor. Its kernel then finds a layer in a stack [L, ...] of all."""

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

    @abstractmethod
    def rows(self, array: jax.Array, index: jax.Array) -> jax.Array:
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


@register_dataclass
@dataclass(frozen=True)
class Weight:
    """A matrix [out, in]: `array` is its own, or that of the matrices of all layers, of which `layer` counts."""

    layout: WeightLayout = field(metadata={"static": True})
    array: jax.Array
    layer: jax.Array | int | None = None
