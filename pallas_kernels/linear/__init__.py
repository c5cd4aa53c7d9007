"""Products of activations with weight matrices, and how matrices lie in memory."""

from jaxllm.pallas_kernels.linear.api import can_pack, choose_layout, linear
from jaxllm.pallas_kernels.linear.fused import NOTHING, Fused, Norm
from jaxllm.pallas_kernels.linear.weight import OperandLayout, Weight, WeightLayout
from jaxllm.pallas_kernels.linear.xla import RowMajor

__all__ = [
    "NOTHING",
    "Fused",
    "Norm",
    "OperandLayout",
    "RowMajor",
    "Weight",
    "WeightLayout",
    "can_pack",
    "choose_layout",
    "linear",
]
