"""Adapters of the routed experts of a mixture: slots with a pair of matrices for every expert.

Axis letters: S slots, E experts, Q the rank of every slot, P parts of a merged matrix.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec

from jaxllm.models.layers.adapter_slots import WHOLE, AdapterArray
from jaxllm.models.layers.parameter import LayerOf, Merged, placeholder
from jaxllm.models.options import AdapterShape
from jaxllm.models.sharding import partition, sharding
from jaxllm.pallas_kernels.low_rank import GroupedLowRank

if TYPE_CHECKING:
    from jaxllm.models.layers.experts import ExpertLinear


class ExpertSlots(nnx.Module):
    """What the adapters in the slots add to the products with the matrices of experts.

    `down` [S, E * P * Q, in] and `up` [S, E * Q, out] are split over devices like the matrices: by experts, or `down`
    by the inputs of each and `up` by its outputs.
    """

    def __init__(self, linear: "ExpertLinear", shape: AdapterShape) -> None:
        rows = linear.rows
        assert isinstance(rows, Merged)
        all_rows, in_size = linear.layout.shape
        experts, rank, dtype = linear.experts, shape.expert_rank, jnp.dtype(shape.dtype)
        self.rank, self.sizes = rank, tuple(part.size for part in rows.parts)
        out_axis, in_axis = linear.axes
        by_expert = "experts" if out_axis == "experts" else None
        self.axes = (by_expert, in_axis), (by_expert, out_axis if out_axis == "expert_mlp" else None)
        arrays = (experts * len(rows.parts) * rank, in_size), (experts * rank, all_rows // experts)
        self.down, self.up = (
            AdapterArray(
                placeholder((shape.num_expert_slots, *sizes), dtype, sharding(linear.mesh, None, *axes)), layout=WHOLE
            )
            for sizes, axes in zip(arrays, self.axes, strict=True)
        )

    def operand(self) -> GroupedLowRank:
        """The matrices of all devices."""
        down: Any = self.down.get_raw_value()
        up: Any = self.up.get_raw_value()
        if isinstance(down, LayerOf):
            return GroupedLowRank(down.stack, up.stack, down.layer, self.rank, self.sizes)
        return GroupedLowRank(down, up, None, self.rank, self.sizes)

    def partitions(self) -> Any:
        """How the operand is split, with partitions in place of arrays."""
        operand = self.operand()
        stack = () if operand.layer is None else (None,)
        down, up = (partition(*stack, None, *axes) for axes in self.axes)
        layer = None if operand.layer is None else PartitionSpec()
        split: Any = replace
        return split(operand, down=down, up=up, layer=layer)


def expert_slot_bytes(linear: tuple[Merged, int], layers: int, rank: int, dtype: Any) -> int:
    """Bytes of one slot for experts' matrices with these rows and so many inputs, on all devices together."""
    rows, in_size = linear
    assert rows.experts is not None
    one = len(rows.parts) * rank * in_size + rank * (rows.size // rows.experts)
    return layers * rows.experts * one * jnp.dtype(dtype).itemsize
