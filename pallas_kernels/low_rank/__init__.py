"""Products with matrices of low rank; every token may have its own (LoRA, arXiv 2106.09685)."""

from jaxllm.pallas_kernels.low_rank.api import add_low_rank, can_add
from jaxllm.pallas_kernels.low_rank.grouped import GroupedLowRank, RowBlocks, add_grouped_low_rank
from jaxllm.pallas_kernels.low_rank.operands import LowRank, Outputs, TokenSlots, whole_blocks

__all__ = [
    "GroupedLowRank",
    "LowRank",
    "Outputs",
    "RowBlocks",
    "TokenSlots",
    "add_grouped_low_rank",
    "add_low_rank",
    "can_add",
    "whole_blocks",
]
