"""How arrays lie on the devices: logical names of their axes, and one table that maps these to axes of the mesh.

Tensor parallelism as in Megatron-LM (arXiv 1909.08053): query, key, value, gate and up projections are split by what
they put out, output and down projections by what they take in, so that a layer needs two sums over the devices. The
vocabulary is split too, in the embedding and in the logits.
"""

from collections.abc import Mapping, Sequence

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxllm.models.config import ModelConfig

DATA, MODEL = "data", "model"
"""Axes of the mesh: engines that share nothing but weights, and devices that share each matrix."""

RULES: Mapping[str, str | None] = {
    "vocab": MODEL,
    "heads": MODEL,
    "kv_heads": MODEL,
    "mlp": MODEL,
    "hidden": None,
}
"""Axis of the mesh for every logical axis; None keeps it whole on each device."""

VOCAB_BLOCK = 128
"""The vocabulary is split between blocks of this size, so that a block is the same tokens on any number of devices."""


def make_mesh(devices: Sequence[jax.Device], model: int) -> Mesh:
    """A mesh of the first `model` devices along the model axis."""
    return Mesh(np.array(devices[:model]).reshape(1, model), (DATA, MODEL))


def model_parallel(mesh: Mesh | None) -> int:
    """Devices that share each matrix; 1 without a mesh."""
    return 1 if mesh is None else int(mesh.shape[MODEL])


def partition(*axes: str | None) -> PartitionSpec:
    """The partition of an array whose axes have these logical names; None is an axis without one."""
    return PartitionSpec(*(None if axis is None else RULES[axis] for axis in axes))


def sharding(mesh: Mesh | None, *axes: str | None) -> NamedSharding | None:
    """The sharding of an array with these logical axes; None without a mesh, which means JAX's default device."""
    return None if mesh is None else NamedSharding(mesh, partition(*axes))


def constrain(x: jax.Array, mesh: Mesh | None, *axes: str | None) -> jax.Array:
    """`x`, which the compiler is told to lay out by its logical axes. What is partial is summed up here."""
    if model_parallel(mesh) == 1:
        return x
    constrained: jax.Array = jax.lax.with_sharding_constraint(x, sharding(mesh, *axes))
    return constrained


def split_kv_heads(config: ModelConfig, devices: int) -> int:
    """KV heads in the cache of all devices together: each has at least one, so they repeat where there are fewer."""
    return max(config.num_kv_heads, devices)


def padded_vocab(config: ModelConfig, devices: int) -> int:
    """Size of the vocabulary in the weights: the next that can be split between blocks, the same on one device."""
    return config.vocab_size if devices == 1 else config.vocab_size + -config.vocab_size % (VOCAB_BLOCK * devices)


def splits(config: ModelConfig, devices: int) -> bool:
    """Whether heads and feed-forward layers can be split over so many devices."""
    few, many = sorted((config.num_kv_heads, devices))
    return not (config.num_heads % devices or config.intermediate_size % devices or many % few)


def working_sizes(config: ModelConfig) -> list[int]:
    """All numbers of devices that the model can be split over."""
    return [devices for devices in range(1, config.num_heads + 1) if splits(config, devices)]
