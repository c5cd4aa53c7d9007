"""What is the same in every layer, made once per step."""

from collections.abc import Callable
from dataclasses import dataclass

from jaxllm.pallas_kernels.paged_attention.ragged import RaggedBatch


@dataclass(frozen=True)
class Heads:
    """Attention of all layers, on one device: N query heads, K KV heads of size H, the cache's type (NumPy's name)."""

    num_heads: int
    num_kv_heads: int
    head_size: int
    kv_dtype: str
    windows: frozenset[int]
    """Sliding windows that are known when compiled; 0 is none."""


def _tpu_prepare(batch: RaggedBatch, heads: Heads) -> RaggedBatch:
    # Imported when it is wanted, as the implementations are.
    from jaxllm.pallas_kernels.paged_attention.tpu.batch import tpu_prepare

    return tpu_prepare(batch)


def _gpu_prepare(batch: RaggedBatch, heads: Heads) -> RaggedBatch:
    from jaxllm.pallas_kernels.paged_attention.gpu.batch import gpu_prepare

    return gpu_prepare(batch, heads)


PREPARE: dict[str, Callable[[RaggedBatch, Heads], RaggedBatch]] = {"tpu": _tpu_prepare, "gpu": _gpu_prepare}
"""By implementation, where it has anything to prepare."""


def prepare(implementation: str, batch: RaggedBatch, heads: Heads) -> RaggedBatch:
    """A batch for all layers of a step: `paged_attention` takes it in place of `batch`, and gives the same.

    The implementation would make what it holds in every layer otherwise.
    """
    prepared = PREPARE.get(implementation)
    return batch if prepared is None else prepared(batch, heads)
