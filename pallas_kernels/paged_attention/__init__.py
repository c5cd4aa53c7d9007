"""Ragged paged attention over a KV cache of all layers."""

from jaxllm.pallas_kernels.paged_attention.api import cache_shape, paged_attention, prepare, prepare_chunked
from jaxllm.pallas_kernels.paged_attention.backend import BACKENDS, CacheGeometry, Heads, get_backend
from jaxllm.pallas_kernels.paged_attention.block_index import AnyIndex, BlockIndex, GroupIndex
from jaxllm.pallas_kernels.paged_attention.options import AttentionOptions, HeadNorms
from jaxllm.pallas_kernels.ragged_batch import NULL_PAGE, RaggedBatch

__all__ = [
    "BACKENDS",
    "NULL_PAGE",
    "AnyIndex",
    "AttentionOptions",
    "BlockIndex",
    "CacheGeometry",
    "GroupIndex",
    "HeadNorms",
    "Heads",
    "RaggedBatch",
    "cache_shape",
    "get_backend",
    "paged_attention",
    "prepare",
    "prepare_chunked",
]
