"""How many KV pages there are: planned from what memory allows, never guessed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np
import psutil

from jaxllm.config import CacheOptions
from jaxllm.errors import CapacityError
from jaxllm.kv.groups import CacheGroups
from jaxllm.models.config import ModelConfig
from jaxllm.models.kv_shape import CacheLayout, latent_sizes, scale_unit
from jaxllm.pallas_kernels.paged_attention import CacheGeometry, cache_shape

if TYPE_CHECKING:
    from jaxllm.pallas_kernels.latent_attention import LatentSizes

_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
CPU_SHARE = 0.25
"""On a CPU the KV cache takes no more than this share of free RAM, times `gpu_memory_utilization`."""

GPU_SLACK = 0.02
"""Share of JAX's pool on a GPU that stays free, for what its allocator rounds up and leaves between arrays."""

ENDLESS = 2**31 - 1
"""More pages than there are."""

_STEADY_DIGITS = {"cpu": 3}
"""Binary digits of free memory that count."""
_OTHER_STEADY_DIGITS = 6


@dataclass(frozen=True)
class CacheShape:
    """Everything about the KV cache but its number of pages.

    `num_kv_heads` are those of all devices together, repeated ones included, that fill a place of a page;
    `implementation` is the attention that decides on the layout, with `platform`. Each of `num_devices` holds an equal
    part of every page, unless it holds latents, which are not split.
    """

    num_layers: int
    page_size: int
    num_kv_heads: int
    head_size: int
    dtype: str
    implementation: str = "xla"
    num_devices: int = 1
    platform: str = "cpu"
    latent: "LatentSizes | None" = None
    """What latent attention keeps of a token, in place of heads."""
    scale_bytes: int = 0
    """Bytes of a dynamic scale, which follows each stored head."""
    other_bytes: int = 0
    """Bytes that arrays besides this one have for each page, over all devices."""

    @classmethod
    def of(
        cls,
        model: ModelConfig,
        *,
        num_layers: int,
        page_size: int,
        dtype: str,
        implementation: str,
        num_devices: int,
        platform: str,
        dynamic_scales: bool = False,
    ) -> "CacheShape":
        """The shape that `model` needs on `num_devices`, with pages of so many layers."""
        unit = scale_unit(model) if dynamic_scales else 0
        layout = CacheLayout(implementation, dtype, num_devices, platform == "tpu", unit)
        heads, head_size = layout.widest(model)
        return cls(
            num_layers,
            page_size,
            heads * num_devices,
            head_size,
            dtype,
            implementation,
            num_devices,
            platform,
            latent_sizes(model),
            layout.scale_bytes(head_size),
        )

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over its layers and all devices, keys and values: as many as devices allocate."""
        copies = 1 if self.latent is None else self.num_devices
        return copies * math.prod(self.array(1)) * self.bytes_each + self.other_bytes

    @property
    def bytes_each(self) -> int:
        """Bytes of a number in the cache."""
        return np.dtype(jax.numpy.dtype(self.dtype)).itemsize

    @property
    def axes(self) -> tuple[str | None, ...]:
        """Logical axes of `array`, see `jaxllm.models.sharding`."""
        return (None, "shards") if self.latent is not None else (None, "shards", None, "kv_heads")

    def array(self, num_pages: int) -> tuple[int, ...]:
        """The array of all devices together, with pages of all data shards: [L, P, C, 2K, H], or another layout."""
        for_tpu = self.platform == "tpu"
        if self.latent is not None:
            # Few models have it: starts of others are faster without the import.
            from jaxllm.pallas_kernels.latent_attention import LatentGeometry, latent_cache_shape

            sizes = LatentGeometry(self.num_layers, num_pages, self.page_size, self.latent, self.dtype, for_tpu)
            return latent_cache_shape(self.implementation, sizes)
        heads = self.num_kv_heads // self.num_devices
        size = self.head_size + self.scale_bytes
        part = CacheGeometry(self.num_layers, num_pages, self.page_size, heads, size, self.dtype, for_tpu)
        shape = list(cache_shape(self.implementation, part))
        shape[3] *= self.num_devices
        return tuple(shape)


def plan_pages(
    shape: CacheShape,
    options: CacheOptions,
    groups: CacheGroups,
    *,
    max_model_len: int,
    max_num_seqs: int,
    free_bytes: int,
    memories: int = 1,
    state_bytes: int = 0,
    num_windows: int = 0,
) -> int:
    """Number of pages, the null page included.

    `free_bytes` is what memory leaves for the cache when no option says otherwise, `state_bytes` what states of
    recurrent layers, or `num_windows` of sound, take of it. A page is split over `memories` of that size: one for each
    device, but virtual devices share theirs. Never more pages than `max_num_seqs` requests of `max_model_len` tokens
    could use.

    Raises:
        CapacityError: not even one request of `max_model_len` tokens fits.
    """
    per_request = groups.most_pages(max_model_len)
    page_bytes = shape.page_bytes // memories
    pages = pages_held(shape, options, free_bytes, memories, state_bytes)
    if options.num_gpu_blocks_override is not None:
        source = f"num_gpu_blocks_override={options.num_gpu_blocks_override}"
    else:
        budget = free_bytes if options.kv_cache_memory_bytes is None else options.kv_cache_memory_bytes
        pages = min(pages, 1 + max_num_seqs * per_request)
        source = f"{budget / 2**20:,.1f} MiB for the KV cache{' on each device' if memories > 1 else ''}"
        if state_bytes > budget:
            what = f"max_num_seqs={max_num_seqs}: states of recurrent layers"
            less = "max_num_seqs or max_state_snapshots"
            if num_windows:
                what, less = f"sound_windows={num_windows}: windows of sound", "sound_windows"
            raise CapacityError(
                f"{what} take {state_bytes / 2**20:,.1f} MiB, but there are {source}; lower {less}, or raise "
                f"kv_cache_memory_bytes (or gpu_memory_utilization, now {options.gpu_memory_utilization})"
            )
    usable = max(pages - 1, 0)
    if usable < per_request:
        fits = groups.longest(usable)
        needed = (per_request + 1) * page_bytes + state_bytes
        lower = f"lower max_model_len to {fits} or less, or " if fits >= 2 else ""
        raise CapacityError(
            f"max_model_len={max_model_len} does not fit: {source} hold only {fits} tokens; {lower}raise "
            f"kv_cache_memory_bytes to {needed} or more (or gpu_memory_utilization, now "
            f"{options.gpu_memory_utilization})"
        )
    return pages


def pages_held(
    shape: CacheShape, options: CacheOptions, free_bytes: int, memories: int = 1, state_bytes: int = 0
) -> int:
    """Number of pages, the null page included, that options or `free_bytes` allow; see `plan_pages`."""
    if options.num_gpu_blocks_override is not None:
        return options.num_gpu_blocks_override
    budget = free_bytes if options.kv_cache_memory_bytes is None else options.kv_cache_memory_bytes
    page_bytes = shape.page_bytes // memories
    # Without attention pages count tokens, and hold nothing.
    return max(budget - state_bytes, 0) // page_bytes if page_bytes else ENDLESS


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
    """Bytes that an engine may take of an accelerator that reports `limit` bytes.

    On a GPU `limit` is the share that JAX was given at start (`jaxllm.executor.backend`), and not taken again.
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
