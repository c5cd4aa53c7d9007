"""Parameters before they have values."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding

from jaxllm.pallas_kernels.linear import RowMajor, WeightLayout

if TYPE_CHECKING:
    from jaxllm.pallas_kernels.linear.quantized import QuantizedLayout

ARRAYS: Mapping[str, str] = {
    "values": "weight",
    "scales": "weight_scale",
    "offsets": "weight_offset",
    "order": "weight_order",
    "input_scale": "input_scale",
}
"""Parameters that are the arrays of a matrix of few bits, by the names of these in `QuantizedMatrix`."""


@dataclass(frozen=True)
class Rows:
    """How the first axis of a checkpoint's tensor becomes that of a parameter which is split over devices.

    Row i of every `group` rows is row `order[i]` of it in the tensor (see `pair_order`), and column i is column
    `columns[i]`. The groups come `times` times (KV heads, where there are more devices than heads), then `padding`
    rows of zeros follow (a vocabulary that does not divide).
    """

    group: int = 1
    times: int = 1
    padding: int = 0
    order: tuple[int, ...] | None = None
    columns: tuple[int, ...] | None = None

    @property
    def is_identity(self) -> bool:
        """Whether nothing changes."""
        return self.times == 1 and not self.padding and self.order is None and self.columns is None

    def of_tensor(self, rows: int) -> int:
        """Rows of the checkpoint's tensor, from those of the parameter."""
        return (rows - self.padding) // self.times

    def expand(self, tensor: np.ndarray) -> np.ndarray:
        """The parameter's values from the tensor's; the same array if nothing changes."""
        if self.columns is not None:
            tensor = tensor[:, list(self.columns)]
        if self.times > 1 or self.order is not None:
            groups = tensor.reshape(-1, self.group, *tensor.shape[1:])
            groups = groups if self.order is None else groups[:, list(self.order)]
            groups = groups if self.times == 1 else np.repeat(groups, self.times, axis=0)
            tensor = groups.reshape(-1, *tensor.shape[1:])
        if self.padding:
            tensor = np.concatenate([tensor, np.zeros((self.padding, *tensor.shape[1:]), tensor.dtype)])
        return tensor


AS_THEY_ARE = Rows()


@dataclass(frozen=True)
class Part:
    """A tensor of the checkpoint, named after a module `name` of its own, in a parameter that holds several.

    It has, of every block of the parameter, `size` rows from row `start` on. It may be one of `expert`'s.
    """

    name: str
    start: int
    size: int
    rows: Rows
    expert: int | None = None


@dataclass(frozen=True)
class Merged:
    """A parameter that holds several tensors of the checkpoint: for each of `blocks` devices its rows of all of them.

    So a device computes the products with all of them as one, and splitting the result moves nothing between devices.
    Where there are `experts`, each has these parts, one expert after the other.
    """

    blocks: int
    parts: tuple[Part, ...]
    experts: int | None = None

    @property
    def size(self) -> int:
        """Rows of the parameter."""
        return self.blocks * sum(part.size for part in self.parts) * (1 if self.experts is None else self.experts)

    def tensors(self) -> Iterator[Part]:
        """The parts, those of every expert."""
        if self.experts is None:
            yield from self.parts
            return
        rows = sum(part.size for part in self.parts)
        for expert in range(self.experts):
            yield from (replace(part, start=expert * rows + part.start, expert=expert) for part in self.parts)

    def join(self, parts: Sequence[jax.Array]) -> jax.Array:
        """The inverse of `split`."""
        apart = [part.reshape(len(part), self.blocks, -1) for part in parts]
        return jnp.concatenate(apart, axis=-1).reshape(len(parts[0]), -1)

    def split(self, x: jax.Array) -> tuple[jax.Array, ...]:
        """The columns [T, blocks * size] of every part from those of all, `x` [T, self.size]."""
        blocks = x.reshape(len(x), self.blocks, -1)
        return tuple(blocks[:, :, part.start : part.start + part.size].reshape(len(x), -1) for part in self.parts)


def merged(blocks: int, parts: Mapping[str, tuple[int, Rows]], experts: int | None = None) -> Merged:
    """From the rows of each part's parameter, were it one of its own, and what they are made of."""
    placed: list[Part] = []
    start = 0
    for name, (total, rows) in parts.items():
        placed.append(Part(name, start, total // blocks, rows))
        start += total // blocks
    return Merged(blocks, tuple(placed), experts)


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
    **about: Any,
) -> nnx.Param[jax.Array]:
    """A parameter without memory: models are built from placeholders, and loading gives them arrays.

    `shape` is what checkpoints know; that of a matrix may have a `layout`. One of the arrays of a matrix of few bits
    says which (`array`, see `ARRAYS`) and how the `matrix` lies.
    """
    layout = layout or RowMajor(tuple(shape))
    return nnx.Param(placeholder(layout.array_shape, dtype, sharding), rows=rows, layout=layout, **about)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LayerOf:
    """Stands in a variable for one layer of a stack, [L, ...], which is not sliced: that would be a copy."""

    stack: jax.Array
    layer: jax.Array


@dataclass(frozen=True)
class ParameterSpec:
    """Facts for loading about a parameter."""

    array: jax.ShapeDtypeStruct
    """As it lies in memory, that of all layers if they are stacked."""
    rows: Rows | Merged
    layout: WeightLayout
    """Layout of one layer."""
    matrix: "QuantizedLayout | None" = None
    """Layout of the quantized matrix that this is an array of, if any."""
    name: str = "values"
    """Which of its arrays."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one layer, as in unquantized checkpoints."""
        return self.layout.shape if self.matrix is None else self.matrix.shape

    @staticmethod
    def of(variable: Any) -> "ParameterSpec":
        """The specification of a variable made by `parameter`."""
        about = variable.get_metadata()
        matrix, name = about.get("matrix"), about.get("array", "values")
        return ParameterSpec(variable.get_raw_value(), about["rows"], about["layout"], matrix, name)
