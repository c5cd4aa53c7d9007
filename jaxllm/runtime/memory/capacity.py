"""What a configuration's arrays and KV pages take of its devices' memory."""

import math
from typing import Any

import jax
import numpy as np

from jaxllm.runtime.memory.memory import plan_pages
from jaxllm.runtime.resolved import ResolvedConfig


def devices_of(resolved: ResolvedConfig) -> tuple[Any, ...]:
    """The devices of a configuration, in the order in which executables know them."""
    return tuple(jax.local_devices()[:1]) if resolved.mesh is None else tuple(resolved.mesh.devices.flat)


def count_pages(resolved: ResolvedConfig, free_bytes: int) -> int:
    """Number of KV pages, the null page included, when every device has `free_bytes` for them.

    Raises `CapacityError` when not even one request of the longest length fits.
    """
    return plan_pages(
        resolved.cache,
        resolved.config.cache,
        max_model_len=resolved.max_model_len,
        max_num_seqs=resolved.config.scheduler.max_num_seqs,
        free_bytes=free_bytes,
        # Virtual CPU devices share one memory.
        memories=1 if resolved.platform == "cpu" else resolved.num_devices,
    )


def bytes_on_device(arrays: Any) -> int:
    """Bytes that each device holds of arrays, given as a tree of shapes, without padding."""
    return sum(map(_bytes_on_device, jax.tree.leaves(arrays)))


def _bytes_on_device(array: jax.ShapeDtypeStruct) -> int:
    shape = array.shape if array.sharding is None else array.sharding.shard_shape(array.shape)
    return math.prod(shape) * np.dtype(array.dtype).itemsize
