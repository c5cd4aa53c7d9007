"""Ragged paged attention over a KV cache of all layers."""

from jaxllm.pallas_kernels.paged_attention.api import cache_shape, in_chunks, paged_attention, prepare
from jaxllm.pallas_kernels.paged_attention.backend import BACKENDS, CacheGeometry, Heads, find
from jaxllm.pallas_kernels.paged_attention.options import AttentionOptions
from jaxllm.pallas_kernels.ragged_batch import NULL_PAGE, RaggedBatch

__all__ = [
    "BACKENDS",
    "NULL_PAGE",
    "AttentionOptions",
    "CacheGeometry",
    "Heads",
    "RaggedBatch",
    "cache_shape",
    "find",
    "in_chunks",
    "paged_attention",
    "prepare",
]
