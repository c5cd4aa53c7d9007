"""An array of the devices in the memory of the host, while the devices are for others."""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxllm.config.progress import Progress, silent
from jaxllm.models.checkpoint.mapped_file import lies_in_file, mapped_ranges
from jaxllm.models.checkpoint.safetensors_file import aligned_empty


@dataclass(frozen=True)
class HostCopy:
    """What the devices of this process held. Parts that several devices hold alike are kept once."""

    shape: tuple[int, ...]
    sharding: Any
    parts: dict[tuple[tuple[int | None, int | None], ...], np.ndarray]
    devices: tuple[tuple[jax.Device, tuple[tuple[int | None, int | None], ...]], ...]

    @classmethod
    def of(cls, array: jax.Array) -> "HostCopy":
        """Copy an array to the host, and delete it on the devices."""
        parts, devices = {}, []
        for shard in array.addressable_shards:
            key = tuple((each.start, each.stop) for each in shard.index)
            devices.append((shard.device, key))
            if key not in parts:
                # On a CPU what is read is the device's own memory.
                values = np.asarray(shard.data)
                parts[key] = aligned_empty(values.shape, values.dtype)
                np.copyto(parts[key], values)
                del values
        copy = cls(array.shape, array.sharding, parts, tuple(devices))
        array.delete()
        return copy

    def to_devices(self) -> jax.Array:
        """The array again, where it was."""
        shards = [jax.device_put(self.parts[key], device) for device, key in self.devices]
        array = jax.make_array_from_single_device_arrays(self.shape, self.sharding, shards)
        # Without waiting, copies of all arrays would be on their way at once.
        return jax.block_until_ready(array)


def offload(leaves: tuple[jax.Array, ...], progress: Progress = silent) -> list[HostCopy | jax.Array]:
    """Bring arrays to the host, one after another.

    Those that lie in mapped files stay: the system takes their memory for other uses as it is, and a copy needs more.
    """
    copies: list[HostCopy | jax.Array] = []
    ranges = mapped_ranges()
    for leaf in leaves:
        copies.append(leaf if lies_in_file(leaf, ranges) else HostCopy.of(leaf))
        progress("Copying weights to the host", len(copies), len(leaves))
    return copies


def bring_back(copies: list[HostCopy | jax.Array], progress: Progress = silent) -> tuple[jax.Array, ...]:
    """The arrays on the devices again; the list is empty afterwards."""
    leaves, count = [], len(copies)
    while copies:
        copy = copies.pop(0)
        leaves.append(copy.to_devices() if isinstance(copy, HostCopy) else copy)
        progress("Copying weights to the devices", len(leaves), count)
    return tuple(leaves)
