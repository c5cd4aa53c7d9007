"""Ragged paged attention over a KV cache of all layers."""

from jaxllm.pallas_kernels.paged_attention.api import IMPLEMENTATIONS, paged_attention
from jaxllm.pallas_kernels.paged_attention.ragged import NULL_PAGE, RaggedBatch

__all__ = ["IMPLEMENTATIONS", "NULL_PAGE", "RaggedBatch", "paged_attention"]
