"""Parameters before they have values."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding


@dataclass(frozen=True)
class Rows:
    """How the first axis of a checkpoint's tensor becomes that of a parameter which is split over devices.

    Every `group` rows come `times` times (KV heads, where there are more devices than heads), then `padding` rows of
    zeros follow (a vocabulary that does not divide).
    """

    group: int = 1
    times: int = 1
    padding: int = 0

    def of_tensor(self, rows: int) -> int:
        """Rows of the checkpoint's tensor, from those of the parameter."""
        return (rows - self.padding) // self.times

    def expand(self, tensor: np.ndarray) -> np.ndarray:
        """The parameter's values from the tensor's; the same array if nothing changes."""
        if self.times > 1:
            groups = tensor.reshape(-1, self.group, *tensor.shape[1:])
            tensor = np.repeat(groups, self.times, axis=0).reshape(-1, *tensor.shape[1:])
        if self.padding:
            tensor = np.concatenate([tensor, np.zeros((self.padding, *tensor.shape[1:]), tensor.dtype)])
        return tensor


AS_THEY_ARE = Rows()


def placeholder(shape: Sequence[int], dtype: jnp.dtype, sharding: NamedSharding | None = None) -> jax.Array:
    """A shape, a type and a place that stand where an array will be."""
    make = cast(Any, jax.ShapeDtypeStruct)
    return cast(jax.Array, make(tuple(shape), dtype, sharding=sharding))


def parameter(
    shape: Sequence[int], dtype: jnp.dtype, sharding: NamedSharding | None = None, rows: Rows = AS_THEY_ARE
) -> nnx.Param[jax.Array]:
    """A parameter without memory: models are built from placeholders, and loading gives them arrays."""
    return nnx.Param(placeholder(shape, dtype, sharding), rows=rows)
