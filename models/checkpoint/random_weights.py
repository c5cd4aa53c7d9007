"""Parameters of a model that are random, made on the devices."""

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxllm.models.checkpoint.weights import SCAN, ParameterPath, Slot, Specs
from jaxllm.models.layers.parameter import Part, Rows
from jaxllm.pallas_kernels.linear import WeightLayout


def random_arrays(
    specs: Specs, slots: Mapping[str, Slot], seed: int, progress: Callable[[int, int], None] | None = None
) -> dict[ParameterPath, jax.Array]:
    """Random parameters, the same for a seed whether layers are stacked or not, and however they are split.

    Matrices are uniform with a variance of 1 / (size of the input), biases small, and weights of norms 1, which keeps
    activations and logits around one at any depth. `progress` is called with the bytes done and the bytes in total.
    """
    tensors: dict[ParameterPath, dict[Part | None, list[tuple[str, Slot]]]] = {}
    for name, slot in slots.items():
        tensors.setdefault(slot.path, {}).setdefault(slot.part, []).append((name, slot))
    total = sum(spec.array.size * spec.array.dtype.itemsize for spec in specs.values())
    arrays: dict[ParameterPath, jax.Array] = {}
    done = 0
    for path, spec in specs.items():
        array = spec.array
        shape = (*(array.shape[:1] if SCAN in path else ()), *spec.layout.shape)
        parts = [each[0][1] for each in tensors[path].values()]
        # uint64 is off by default; the hash below works on 32 bits.
        keys = [
            jnp.asarray(np.array([zlib.crc32(f"{seed}/{name}".encode()) for name, _ in each], np.uint32))
            for each in tensors[path].values()
        ]
        make = partial(_random_parameter, shape=shape, dtype=array.dtype, slots=parts, layout=spec.layout)
        # Compiled for its place, so that no device makes more than its part.
        arrays[path] = jax.jit(make, out_shardings=array.sharding)(keys)
        done += array.size * array.dtype.itemsize
        if progress:
            progress(done, total)
    return arrays


def _random_parameter(
    keys: list[jax.Array], *, shape: tuple[int, ...], dtype: Any, slots: Sequence[Slot], layout: WeightLayout
) -> jax.Array:
    """A parameter of `shape` that is made of the tensors of `slots`, which have a key each for every layer."""
    stacked, is_bias = SCAN in slots[0].path, slots[0].path[-1] == "bias"
    layers, one = (shape[:1], shape[1:]) if stacked else ((1,), shape)
    parts = []
    for key, slot in zip(keys, slots, strict=True):
        size = one[0] if slot.part is None else slot.blocks * slot.part.size
        values = _random_values(key, (size, *one[1:]), slot.rows, is_bias=is_bias).astype(dtype)
        parts.append(values.reshape(*layers, slot.blocks, -1, *one[1:]))
    return layout.pack(jnp.concatenate(parts, axis=2).reshape(shape))


def _random_values(keys: jax.Array, shape: tuple[int, ...], rows: Rows, *, is_bias: bool) -> jax.Array:
    """The tensor of each layer with a key, [layers, *shape] float32.

    Made from a hash of each element's index in the checkpoint's tensor (murmur3's finaliser): rows that are there
    several times are the same, and no value depends on how the parameter is split.
    """
    if len(shape) < 2 and not is_bias:
        return jnp.ones((len(keys), *shape), jnp.float32)
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
    uniform = ((bits ^ bits >> 16) >> 8).astype(jnp.float32) * 2.0**-24 - 0.5
    deviation = 0.02 if is_bias else shape[-1] ** -0.5
    return jnp.where(row < shape[0] - rows.padding, uniform * (12**0.5 * deviation), 0.0)
