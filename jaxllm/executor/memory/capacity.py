"""Device memory that a configuration's arrays and KV pages take."""

import logging
import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxllm.errors import CapacityError
from jaxllm.executor.memory.memory import pages_held, plan_pages, steady
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.models.causal_lm import abstract_model
from jaxllm.models.layers.adapter_slots import split_adapters
from jaxllm.models.plan import StateArray
from jaxllm.models.sharding import RULES

logger = logging.getLogger(__name__)

LENGTH_STEP = 1024
"""A length that follows from free memory is a multiple of it, so that a little more or less changes nothing, and no
engine is started that could answer only shorter requests."""


SNAPSHOT_SHARE = 1 / 8
"""Largest share of the cache memory that snapshots of recurrent states take by default."""

SNAPSHOTS_PER_REQUEST = 4
"""And so many for each request that runs."""


def devices_of(resolved: ResolvedConfig) -> tuple[Any, ...]:
    """The devices of a configuration, in the order in which executables know them."""
    return tuple(jax.local_devices()[:1]) if resolved.mesh is None else tuple(resolved.mesh.devices.flat)


def local_devices_of(resolved: ResolvedConfig) -> tuple[Any, ...]:
    """The engine's devices in this process, if several processes make the engine."""
    return tuple(device for device in devices_of(resolved) if device.process_index == jax.process_index())


def count_pages(resolved: ResolvedConfig, free_bytes: int) -> int:
    """Number of KV pages, the null page included, when every device has `free_bytes` for them.

    Raises `CapacityError` when not even one request of the longest length fits.
    """
    return plan_pages(
        resolved.cache,
        resolved.config.cache,
        resolved.cache_groups,
        max_model_len=resolved.max_model_len,
        max_num_seqs=resolved.max_num_seqs,
        free_bytes=free_bytes,
        memories=_memories(resolved),
        state_bytes=state_bytes(resolved),
        num_windows=resolved.sound_windows,
    )


def pages_asked(resolved: ResolvedConfig) -> int:
    """Number of KV pages that `num_gpu_blocks_override` or `kv_cache_memory_bytes` say, the null page included.

    Raises `CapacityError` like `count_pages`.
    """
    if resolved.platform == "cpu" or not resolved.stages:
        return count_pages(resolved, 0)
    # The bytes are those of each device, and stages may have different layers.
    return min(count_pages(part, 0) for part in resolved.stage_configs)


def adapter_bytes(resolved: ResolvedConfig) -> int:
    """Bytes of each device that slots for adapters take, without padding."""
    if resolved.adapters is None:
        return 0
    options = replace(resolved.forward, adapters=resolved.adapters)
    _, arrays = split_adapters(abstract_model(resolved.model, options, jnp.dtype(resolved.dtype)))
    whole: Any = list(arrays.values())
    own = [each.shape if each.sharding is None else each.sharding.shard_shape(each.shape) for each in whole]
    return sum(math.prod(shape) * each.dtype.itemsize for shape, each in zip(own, whole, strict=True))


def state_bytes(resolved: ResolvedConfig) -> int:
    """Bytes of each memory that states take, those of snapshots and the inputs of drafts included, without padding.

    And those of windows of sound.
    """
    states = slot_bytes(resolved) * resolved.num_state_slots + draft_bytes(resolved) * resolved.max_num_seqs
    return states + window_bytes(resolved) * resolved.sound_windows


def window_bytes(resolved: ResolvedConfig) -> int:
    """Bytes of each memory that a window of sound takes; 0 where the model does not hear."""
    return resolved.pages_per_window * resolved.cache.page_bytes // _memories(resolved)


def slot_bytes(resolved: ResolvedConfig) -> int:
    """Bytes of each memory that the states of one request take, without padding."""
    return sum(_array_bytes(resolved, group.arrays, group.count) for group in resolved.cache_plan.states)


def draft_bytes(resolved: ResolvedConfig) -> int:
    """Bytes of each memory that recurrent layers keep of a request's drafts, without padding."""
    if not resolved.max_drafts:
        return 0
    groups = resolved.cache_plan.states
    return sum(_array_bytes(resolved, group.draft_inputs, group.count * resolved.max_drafts) for group in groups)


def _array_bytes(resolved: ResolvedConfig, arrays: Iterable[StateArray], count: int) -> int:
    """Bytes of each memory that so many of each of these arrays take."""
    devices, shares = resolved.num_devices, _memories(resolved)
    total = 0
    for array in arrays:
        size = math.prod(array.shape) * np.dtype(jnp.dtype(array.dtype or resolved.dtype)).itemsize
        is_split = any(axis is not None and RULES[axis] is not None for axis in array.axes)
        total += count * (size if is_split else size * devices) // shares
    return total


def with_slots(resolved: ResolvedConfig, free_bytes: int) -> ResolvedConfig:
    """The configuration with as many snapshots of states and windows of sound as options say, or memory allows.

    `free_bytes` are those of each device for caches when no option says otherwise.
    """
    return with_windows(with_snapshots(resolved, free_bytes), free_bytes)


def with_windows(resolved: ResolvedConfig, free_bytes: int) -> ResolvedConfig:
    """The configuration with as many windows of sound as `sound_windows` says, or as memory holds requests."""
    each, asked, cache = window_bytes(resolved), resolved.config.sound.sound_windows, resolved.config.cache
    if not each or asked is not None or cache.num_gpu_blocks_override is not None:
        return resolved
    free = free_bytes if cache.kv_cache_memory_bytes is None else cache.kv_cache_memory_bytes
    pages = resolved.cache_groups.most_pages(resolved.max_model_len)
    held = free // (each + pages * resolved.cache.page_bytes // _memories(resolved))
    # A power of two, so that a little more or less memory changes nothing.
    most = 1 << held.bit_length() >> 1 if held else 1
    return replace(resolved, sound_windows=min(resolved.sound_windows, most))


def with_snapshots(resolved: ResolvedConfig, free_bytes: int) -> ResolvedConfig:
    """The configuration with as many snapshots of states as `max_state_snapshots` says, or memory allows.

    `free_bytes` are those of each device for caches when no option says otherwise.
    """
    cache, each = resolved.config.cache, slot_bytes(resolved)
    if not each or not cache.enable_prefix_caching:
        return resolved
    count = cache.max_state_snapshots
    if count is None:
        free = free_bytes if cache.kv_cache_memory_bytes is None else cache.kv_cache_memory_bytes
        held = int(free * SNAPSHOT_SHARE) // each
        # A power of two, so that a little more or less memory changes nothing.
        count = min(SNAPSHOTS_PER_REQUEST * resolved.max_num_seqs, 1 << held.bit_length() >> 1 if held else 0)
    return replace(resolved, num_snapshots=count)


def _memories(resolved: ResolvedConfig) -> int:
    """Virtual CPU devices share one memory."""
    return 1 if resolved.platform == "cpu" else resolved.num_devices


def shortened(resolved: ResolvedConfig, free_bytes: int) -> ResolvedConfig:
    """The configuration with requests as long as the KV cache holds, with a warning, where no length was asked for.

    Unchanged where the model's own length fits, or so little does that `count_pages` had better say so.
    """
    if resolved.config.model.max_model_len is not None or _held(resolved, free_bytes) >= resolved.max_model_len:
        return resolved
    fits = _held(resolved, steady(free_bytes, resolved.platform))
    length = fits - fits % LENGTH_STEP
    if not length:
        return resolved
    logger.warning(
        "max_model_len is reduced to %d, from the model's %d, to fit the KV cache; set --max-model-len to choose the "
        "length",
        length,
        resolved.model.context_length,
    )
    return replace(resolved, max_model_len=length)


def _held(resolved: ResolvedConfig, free_bytes: int) -> int:
    """Tokens in a KV cache of so many bytes on each device."""
    states = state_bytes(resolved)
    pages = pages_held(resolved.cache, resolved.config.cache, free_bytes, _memories(resolved), states)
    return resolved.cache_groups.longest(max(pages - 1, 0))


def count_steady_pages(resolved: ResolvedConfig, free_bytes: int) -> int:
    """`count_pages` for `free_bytes` rounded down, so that a little more or less changes nothing.

    Not rounded where one request of the longest length would fit no more.
    """
    try:
        return count_pages(resolved, steady(free_bytes, resolved.platform))
    except CapacityError:
        return count_pages(resolved, free_bytes)


def bytes_on_device(arrays: Any) -> int:
    """Bytes that each device holds of arrays, given as a tree of shapes, without padding; two int4 share a byte."""
    return sum(map(_bytes_on_device, jax.tree.leaves(arrays)))


def _bytes_on_device(array: jax.ShapeDtypeStruct) -> int:
    shape = array.shape if array.sharding is None else array.sharding.shard_shape(array.shape)
    size = math.prod(shape) * np.dtype(array.dtype).itemsize
    return size // 2 if array.dtype == jnp.int4 else size
