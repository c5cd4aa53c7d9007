"""Which parts of an array a process needs for its devices, and how it puts them together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxllm.executor.weights.sharded.manifest import SavedArray, SavedPart
from jaxllm.models.checkpoint.safetensors_file import aligned_empty
from jaxllm.models.sharding import put

Region = tuple[tuple[int, int], ...]
"""Where a part begins and ends along each axis."""


def region_of(index: Sequence[slice], shape: Sequence[int]) -> Region:
    """The region of an index, as shardings have it."""
    return tuple(each.indices(size)[:2] for each, size in zip(index, shape, strict=True))


@dataclass(frozen=True)
class Placement:
    """What the devices of this process have of an array, whatever parts it was saved in."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    sharding: Any
    devices: tuple[tuple[jax.Device | None, Region], ...]

    @classmethod
    def of(cls, array: jax.ShapeDtypeStruct) -> "Placement":
        """The placement of a parameter; without a sharding it is whole, on JAX's default device."""
        shape, dtype = tuple(array.shape), np.dtype(array.dtype)
        if array.sharding is None:
            return cls(shape, dtype, None, ((None, region_of([slice(None)] * len(shape), shape)),))
        found = array.sharding.addressable_devices_indices_map(shape)
        devices = tuple((device, region_of(index, shape)) for device, index in found.items())
        return cls(shape, dtype, array.sharding, devices)

    def parts(self, saved: SavedArray) -> list[int]:
        """The parts that are needed, by their places in the list of all."""
        regions = {region for _, region in self.devices}
        return [
            number
            for number, part in enumerate(saved.parts)
            if any(_common(part.region, region) is not None for region in regions)
        ]

    def array(self, saved: SavedArray, values: Mapping[int, np.ndarray]) -> jax.Array:
        """The array on the devices, from the values of these parts."""
        found: dict[Region, np.ndarray] = {}
        for _, region in self.devices:
            if region not in found:
                found[region] = self._joined(region, [(saved.parts[number], part) for number, part in values.items()])
        if self.sharding is None:
            (only,) = found.values()
            return put(only, None)
        shards = [jax.device_put(found[region], device) for device, region in self.devices]
        return jax.make_array_from_single_device_arrays(self.shape, self.sharding, shards)

    def _joined(self, region: Region, parts: Sequence[tuple[SavedPart, np.ndarray]]) -> np.ndarray:
        for part, values in parts:
            if part.region == region:
                return values
        whole = aligned_empty(tuple(stop - start for start, stop in region), self.dtype)
        for part, values in parts:
            common = _common(part.region, region)
            if common is not None:
                whole[_within(common, region)] = values[_within(common, part.region)]
        return whole


def _common(one: Region, other: Region) -> Region | None:
    """What two regions have in common; None where that is nothing."""
    found = tuple((max(a[0], b[0]), min(a[1], b[1])) for a, b in zip(one, other, strict=True))
    return found if all(start < stop for start, stop in found) else None


def _within(inner: Region, outer: Region) -> tuple[slice, ...]:
    return tuple(slice(a - start, b - start) for (a, b), (start, _) in zip(inner, outer, strict=True))
