"""Parameters of a model that are random, made on the devices."""

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxllm.models.checkpoint.random_matrices import constant_array, from_bits
from jaxllm.models.checkpoint.safetensors_file import aligned_empty
from jaxllm.models.checkpoint.weight_target import SCAN, ParameterPath, Slots, Specs, WeightTarget
from jaxllm.models.layers.parameter import ParameterSpec, Part, Rows
from jaxllm.models.sharding import put


@dataclass(frozen=True)
class RandomWeights:
    """Stands in for a checkpoint where values do not matter: parameters that a seed gives."""

    seed: int = 0

    def arrays(
        self, specs: Specs, slots: Slots, progress: Callable[[int, int], None] | None = None
    ) -> dict[ParameterPath, jax.Array]:
        """Parameters, the same for a seed whether layers are stacked or not, and however they are split.

        Matrices are uniform with a variance of 1 / (size of the input), biases small, and weights of norms 1, which
        keeps activations and logits around one at any depth. `progress` is called with the bytes done and the bytes in
        total.
        """
        named = _by_parameter(slots)
        total = sum(spec.array.size * spec.array.dtype.itemsize for spec in specs.values())
        arrays: dict[ParameterPath, jax.Array] = {}
        done = 0
        for path, spec in specs.items():
            array = spec.array
            shape = (*(array.shape[:1] if SCAN in path else ()), *spec.layout.shape)
            own = named[path if spec.matrix is None else (*path[:-1], "weight")]
            parts = [each[0][1] for each in own.values()]
            # uint64 is off by default; the hash below works on 32 bits.
            keys = [
                jnp.asarray(np.array([zlib.crc32(f"{self.seed}/{name}".encode()) for name, _ in each], np.uint32))
                for each in own.values()
            ]
            make = partial(_random_parameter, shape=shape, spec=spec, slots=parts)
            # Compiled for its place, so that no device makes more than its part.
            arrays[path] = _as_loaded(jax.jit(make, out_shardings=array.sharding)(keys))
            done += array.size * array.dtype.itemsize
            if progress:
                progress(done, total)
        return arrays


def _by_parameter(slots: Slots) -> dict[ParameterPath, dict[Part | None, list[tuple[str, WeightTarget]]]]:
    """The slots of each part of a parameter, with names from which its values follow."""
    found: dict[ParameterPath, dict[Part | None, list[tuple[str, WeightTarget]]]] = {}
    for name, own in slots.items():
        for slot in own:
            # Several modules' parts of a tensor are not to be the same.
            key = name if len(own) == 1 else f"{name}/{slot.part.name if slot.part else slot.path[-2]}"
            found.setdefault(slot.path, {}).setdefault(slot.part, []).append((key, slot))
    return found


def _as_loaded(array: jax.Array) -> jax.Array:
    """The array in memory like that of weights which are read, so that one can measure with it.

    On a CPU that is NumPy's, which has large pages where there are any: products read it faster than XLA's.
    """
    devices = array.devices()
    if len(devices) > 1 or next(iter(devices)).platform != "cpu":
        return array
    host = aligned_empty(array.shape, array.dtype)
    np.copyto(host, array)
    return put(host, array.sharding)


def _random_parameter(
    keys: list[jax.Array], *, shape: tuple[int, ...], spec: ParameterSpec, slots: Sequence[WeightTarget]
) -> jax.Array:
    """A parameter of `shape` that is made of the tensors of `slots`, which have a key each for every layer."""
    stacked, is_bias = SCAN in slots[0].path, slots[0].path[-1] == "bias"
    values_of = partial(_random_values, is_bias=is_bias, dtype=spec.array.dtype)
    if spec.matrix is not None:
        constant = constant_array(spec, shape)
        if constant is not None:
            return constant
        values_of = partial(from_bits, spec=spec)
    layers, one = (shape[:1], shape[1:]) if stacked else ((1,), shape)
    parts = []
    # Those that are alike are made together: there may be hundreds, of experts.
    for (size, rows), alike in groupby(zip(keys, slots, strict=True), lambda pair: _size_and_rows(pair[1], one[0])):
        own = jnp.stack([key for key, _ in alike], axis=1)
        blocks = slots[0].blocks
        values = (
            values_of(_random_bits(own.reshape(-1), (size, *one[1:]), rows), rows=rows)
            .reshape(*own.shape, blocks, -1, *one[1:])
            .swapaxes(1, 2)
        )
        parts.append(values.reshape(*layers, blocks, -1, *one[1:]))
    return spec.layout.pack(jnp.concatenate(parts, axis=2).reshape(shape))


def _size_and_rows(slot: WeightTarget, whole: int) -> tuple[int, Rows]:
    """How many rows of a parameter, which has `whole`, are a slot's, and what they are made of."""
    return whole if slot.part is None else slot.blocks * slot.part.size, slot.rows


def _random_values(bits: jax.Array, *, rows: Rows, is_bias: bool, dtype: Any) -> jax.Array:
    """Tensors from `bits` uint32 [layers, *shape]."""
    shape = bits.shape[1:]
    if len(shape) < 2 and not is_bias:
        return jnp.ones(bits.shape, dtype)
    row = lax.broadcasted_iota(jnp.uint32, shape, 0)
    uniform = (bits >> 8).astype(jnp.float32) * 2.0**-24 - 0.5
    deviation = 0.02 if is_bias else shape[-1] ** -0.5
    return jnp.where(row < shape[0] - rows.padding, uniform * (12**0.5 * deviation), 0.0).astype(dtype)


def _random_bits(keys: jax.Array, shape: tuple[int, ...], rows: Rows) -> jax.Array:
    """For each layer with a key uint32 [layers, *shape].

    Made from a hash of each element's index in the checkpoint's tensor (murmur3's finaliser): rows that are there
    several times are the same, and no value depends on how the parameter is split.
    """
    row = lax.broadcasted_iota(jnp.uint32, shape, 0)
    group, repeated = np.uint32(rows.group), np.uint32(rows.group * rows.times)
    index = (row // repeated * group + row % group) * np.uint32(math.prod(shape[1:]) % 2**32)
    stride = 1
    for axis in reversed(range(1, len(shape))):
        index += lax.broadcasted_iota(jnp.uint32, shape, axis) * np.uint32(stride % 2**32)
        stride *= shape[axis]
    bits = index[None] * np.uint32(0x9E3779B9) ^ keys.reshape(-1, *(1,) * len(shape))
    bits = (bits ^ bits >> 16) * np.uint32(0x85EBCA6B)
    bits = (bits ^ bits >> 13) * np.uint32(0xC2B2AE35)
    return bits ^ bits >> 16
