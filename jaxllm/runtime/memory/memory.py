"""How many KV pages there are: planned from what memory allows, never guessed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
import psutil

from jaxllm.config import CacheOptions
from jaxllm.errors import CapacityError
from jaxllm.models.config import ModelConfig
from jaxllm.models.sharding import split_kv_heads
from jaxllm.pallas_kernels.paged_attention import CacheGeometry, cache_shape

_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
CPU_SHARE = 0.25
"""On a CPU the KV cache takes no more than this share of free RAM, times `gpu_memory_utilization`."""

GPU_SLACK = 0.02
"""Share of JAX's pool on a GPU that stays free, for what its allocator rounds up and leaves between arrays."""

_STEADY_DIGITS = {"cpu": 3}
"""Binary digits of free memory that count."""
_OTHER_STEADY_DIGITS = 6


@dataclass(frozen=True)
class CacheShape:
    """Everything about the KV cache but its number of pages.

    `num_kv_heads` are those of all devices together, repeated ones included; `implementation` is the attention that
    decides on the layout. Each of `num_devices` holds an equal part of every page.
    """

    num_layers: int
    page_size: int
    num_kv_heads: int
    head_size: int
    dtype: str
    implementation: str = "xla"
    num_devices: int = 1

    @classmethod
    def of(
        cls, model: ModelConfig, *, page_size: int, dtype: str, implementation: str, num_devices: int
    ) -> "CacheShape":
        """The shape that `model` needs on `num_devices`."""
        kv_heads = split_kv_heads(model, num_devices)
        return cls(model.num_layers, page_size, kv_heads, model.head_size, dtype, implementation, num_devices)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all layers and devices, keys and values."""
        return math.prod(self.array(1)) * np.dtype(jax.numpy.dtype(self.dtype)).itemsize

    def array(self, num_pages: int) -> tuple[int, ...]:
        """The array of all devices together: [L, P, C, 2K, H], or as the implementation has it."""
        heads = self.num_kv_heads // self.num_devices
        part = CacheGeometry(self.num_layers, num_pages, self.page_size, heads, self.head_size, self.dtype)
        shape = list(cache_shape(self.implementation, part))
        shape[3] *= self.num_devices
        return tuple(shape)


def plan_pages(
    shape: CacheShape,
    options: CacheOptions,
    *,
    max_model_len: int,
    max_num_seqs: int,
    free_bytes: int,
    memories: int = 1,
) -> int:
    """Number of pages, the null page included.

    `free_bytes` is what memory leaves for the cache when no option says otherwise. A page is split over `memories` of
    that size: one for each device, but virtual devices share theirs. Never more pages than `max_num_seqs` requests of
    `max_model_len` tokens could use.

    Raises:
        CapacityError: not even one request of `max_model_len` tokens fits.
    """
    per_request = -(-max_model_len // shape.page_size)
    page_bytes = shape.page_bytes // memories
    pages = pages_held(shape, options, free_bytes, memories)
    if options.num_gpu_blocks_override is not None:
        source = f"num_gpu_blocks_override={options.num_gpu_blocks_override}"
    else:
        budget = free_bytes if options.kv_cache_memory_bytes is None else options.kv_cache_memory_bytes
        pages = min(pages, 1 + max_num_seqs * per_request)
        source = f"{budget / 2**20:,.1f} MiB for the KV cache{' on each device' if memories > 1 else ''}"
    usable = max(pages - 1, 0)
    if usable < per_request:
        fits = usable * shape.page_size
        needed = (per_request + 1) * page_bytes
        lower = f"lower max_model_len to {fits} or less, or " if fits >= 2 else ""
        raise CapacityError(
            f"max_model_len={max_model_len} does not fit: {source} hold {fits} tokens; {lower}raise "
            f"kv_cache_memory_bytes to {needed} or more (or gpu_memory_utilization, now "
            f"{options.gpu_memory_utilization})"
        )
    return pages


def pages_held(shape: CacheShape, options: CacheOptions, free_bytes: int, memories: int = 1) -> int:
    """Number of pages, the null page included, that options or `free_bytes` allow; see `plan_pages`."""
    if options.num_gpu_blocks_override is not None:
        return options.num_gpu_blocks_override
    budget = free_bytes if options.kv_cache_memory_bytes is None else options.kv_cache_memory_bytes
    return max(budget, 0) // (shape.page_bytes // memories)


def cpu_free_bytes(utilization: float) -> int:
    """Bytes a CPU engine may take for its KV cache: a share of what the machine or its container has left."""
    memory = psutil.virtual_memory()
    available = memory.available
    for path in _CGROUP_LIMITS:
        if path.exists():
            text = path.read_text().strip()
            if text.isdigit() and int(text) < memory.total:
                available = min(available, max(int(text) - psutil.Process().memory_info().rss, 0))
    return int(available * CPU_SHARE * utilization)


def steady(size: int, platform: str) -> int:
    """`size` rounded down to 4 to 7 times a power of two on CPU, and to 32 to 63 times one elsewhere.

    With as many pages as free memory happens to allow, every start would be of an engine of another shape, for which
    nothing is compiled yet. An accelerator's free memory varies little, and all of it is for the cache: at most one
    part in 32 is given away.
    """
    digits = _STEADY_DIGITS.get(platform, _OTHER_STEADY_DIGITS)
    shift = max(size.bit_length() - digits, 0)
    return size >> shift << shift


def usable_bytes(limit: int, platform: str, utilization: float) -> int:
    """What an engine may take of an accelerator that reports `limit` bytes.

    On a GPU `limit` is the share that JAX was given at start (`jaxllm.runtime.backend`), and not taken again.
    """
    return int(limit * (1 - GPU_SLACK)) if platform == "gpu" else int(limit * utilization)


def device_free_bytes(devices: Sequence[jax.Device], utilization: float, temporary_bytes: int) -> int:
    """Bytes left on each accelerator once weights are loaded and the largest executable has its temporaries.

    Raises:
        CapacityError: nothing is left on one of them.
    """
    return min(_free_bytes(device, utilization, temporary_bytes) for device in devices)


def _free_bytes(device: jax.Device, utilization: float, temporary_bytes: int) -> int:
    stats = device.memory_stats() or {}
    limit, used = stats.get("bytes_limit", 0), stats.get("bytes_in_use", 0)
    free = usable_bytes(limit, device.platform, utilization) - used - temporary_bytes
    if free <= 0:
        raise CapacityError(
            f"no memory is left for the KV cache: {device.device_kind} has {limit / 2**30:.1f} GiB, "
            f"{used / 2**30:.1f} GiB are in use and a step needs {temporary_bytes / 2**30:.1f} GiB more; lower "
            f"max_num_batched_tokens or raise gpu_memory_utilization (now {utilization})"
        )
    return free
