"""Parameters before they have values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding

from jaxllm.pallas_kernels.linear import RowMajor, WeightLayout


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


@dataclass(frozen=True)
class Part:
    """A tensor of the checkpoint, named after a module `name` of its own, in a parameter that holds several.

    Of every block of the parameter it has `size` rows from row `start` on.
    """

    name: str
    start: int
    size: int
    rows: Rows


@dataclass(frozen=True)
class Merged:
    """A parameter that holds several tensors of the checkpoint: for each of `blocks` devices its rows of all of them.

    So a device computes the products with all of them as one, and splitting the result moves nothing between devices.
    """

    blocks: int
    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        """Rows of the parameter."""
        return self.blocks * sum(part.size for part in self.parts)

    def split(self, x: jax.Array) -> tuple[jax.Array, ...]:
        """The columns [T, blocks * size] of every part from those of all, `x` [T, self.size]."""
        blocks = x.reshape(len(x), self.blocks, -1)
        return tuple(blocks[:, :, part.start : part.start + part.size].reshape(len(x), -1) for part in self.parts)


def merged(blocks: int, parts: Mapping[str, tuple[int, Rows]]) -> Merged:
    """From the rows of each part's parameter, were it one of its own, and what they are made of."""
    placed: list[Part] = []
    start = 0
    for name, (total, rows) in parts.items():
        placed.append(Part(name, start, total // blocks, rows))
        start += total // blocks
    return Merged(blocks, tuple(placed))


def placeholder(shape: Sequence[int], dtype: jnp.dtype, sharding: NamedSharding | None = None) -> jax.Array:
    """A shape, a type and a place that stand where an array will be."""
    make = cast(Any, jax.ShapeDtypeStruct)
    return cast(jax.Array, make(tuple(shape), dtype, sharding=sharding))


def parameter(
    shape: Sequence[int],
    dtype: jnp.dtype,
    sharding: NamedSharding | None = None,
    rows: Rows | Merged = AS_THEY_ARE,
    layout: WeightLayout | None = None,
) -> nnx.Param[jax.Array]:
    """A parameter without memory: models are built from placeholders, and loading gives them arrays.

    `shape` is what checkpoints know; that of a matrix may have a `layout`.
    """
    layout = layout or RowMajor(tuple(shape))
    return nnx.Param(placeholder(layout.array_shape, dtype, sharding), rows=rows, layout=layout)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LayerOf:
    """Stands in a variable for one layer of a stack, [L, ...], which is not sliced: that would be a copy."""

    stack: jax.Array
    layer: jax.Array


@dataclass(frozen=True)
class ParameterSpec:
    """What loading has to know of a parameter."""

    array: jax.ShapeDtypeStruct
    """As it lies in memory, that of all layers if they are stacked."""
    rows: Rows | Merged
    layout: WeightLayout
    """Of one layer."""

    @staticmethod
    def of(variable: Any) -> "ParameterSpec":
        """Of a variable that `parameter` has made."""
        about = variable.get_metadata()
        return ParameterSpec(variable.get_raw_value(), about["rows"], about["layout"])
