"""How the kernel for TPUs wants matrices. Imports no compiler."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jaxllm.pallas_kernels.linear import RowMajor
from jaxllm.pallas_kernels.tpu_common.constants import LANES, SUBLANES


@dataclass(frozen=True)
class Streamed(RowMajor):
    """Matrices that pass through vector memory where they lie in the stack of all layers.

    The columns of each of `parts` devices are whole rows of lanes, the last ones zeros. XLA would lay an array with
    2,880 columns the other way round, so as not to pad it, and copy it for the kernel in every step.
    """

    in_stack: ClassVar[bool] = True
    parts: int = 1

    @property
    def array_shape(self) -> tuple[int, ...]:
        """(out, in), with padding."""
        out_size, in_size = self.shape
        return out_size, in_size + self.parts * self._padding

    @property
    def _padding(self) -> int:
        """Columns of zeros of each device."""
        return -(self.shape[1] // self.parts) % LANES

    def pack(self, tensor: jax.Array) -> jax.Array:
        """On the device."""
        if not self._padding:
            return tensor
        parts = tensor.reshape(*tensor.shape[:-1], self.parts, -1)
        padded = jnp.pad(parts, [(0, 0)] * tensor.ndim + [(0, self._padding)])
        return padded.reshape(*tensor.shape[:-1], -1)

    def pack_into(self, array: np.ndarray, tensor: np.ndarray) -> None:
        """Part by part."""
        to, parts = (each.reshape(len(each), self.parts, -1) for each in (array, tensor))
        np.copyto(to[:, :, : parts.shape[2]], parts)
        to[:, :, parts.shape[2] :] = 0


def can_stream(shape: tuple[int, int], dtype: DTypeLike, parts: tuple[int, int]) -> bool:
    """Whether the kernel multiplies with matrices of a `shape`, rows and columns split over so many devices."""
    is_split = all(size % count == 0 for size, count in zip(shape, parts, strict=True))
    return is_split and shape[0] // parts[0] % SUBLANES == 0 and jnp.dtype(dtype).name in ("bfloat16", "float32")
