"""How arrays lie on the devices: logical names of their axes, and one table that maps these to axes of the mesh.

Tensor parallelism as in Megatron-LM (arXiv 1909.08053): query, key, value, gate and up projections are split by what
they put out, output and down projections by what they take in, so that a layer needs two sums over the devices. The
vocabulary is split too, in the embedding and in the logits. Experts are split like other feed-forward layers, or each
device has some of them (expert parallel). In large steps each sum leaves every device with its part of the tokens, and
the next product gathers them (sequence parallelism, arXiv 2205.05198): as many bytes, and what lies between, norms and
residuals, is computed once.

With a data axis, every data shard is a row of that axis: devices with requests, KV pages and a copy of the weights of
their own, but for experts, which all devices share. A step is one program, in which the data axis is manual
(`jaxllm.executor.compile.data_shards`): a layer sees the tokens of its shard alone, and only experts ask for others'.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec, Sharding

from jaxllm.models.config import ModelConfig
from jaxllm.models.ring import order_ring

DATA, MODEL = "data", "model"
"""Axes of the mesh: shards of the batch, which share experts, and devices that share each matrix."""

RULES: Mapping[str, str | None] = {
    "vocab": MODEL,
    "heads": MODEL,
    "kv_heads": MODEL,
    "mlp": MODEL,
    "experts": MODEL,
    "expert_mlp": MODEL,
    "hidden": None,
    "tokens": MODEL,
    "shards": None,
}
"""Axis of the mesh for every logical axis, within a data shard; None keeps it whole on each device."""

OVER_ALL: Mapping[str, str | tuple[str, ...]] = {
    "experts": (DATA, MODEL),
    "expert_mlp": (DATA, MODEL),
    "shards": DATA,
}
"""The same for arrays of all data shards together, where that differs: each shard has its own part of the axis
"shards"."""

VOCAB_BLOCK = 128
"""The vocabulary is split between blocks of this size, so that a block is the same tokens on any number of devices."""

FEWEST_SPLIT_TOKENS = 256
"""In smaller steps two collectives for each sum cost more than the norms and residuals that they save."""


def make_mesh(devices: Sequence[jax.Device], model: int, data: int = 1) -> Mesh:
    """A mesh of the first devices, `model` along the model axis, as a ring: what travels goes to the next device."""
    return Mesh(np.array(order_ring(devices[: data * model])).reshape(data, model), (DATA, MODEL))


def model_parallel(mesh: Mesh | None) -> int:
    """Devices that share each matrix; 1 without a mesh."""
    return 1 if mesh is None else int(mesh.shape[MODEL])


def data_parallel(mesh: Mesh | None) -> int:
    """Data shards; 1 without a mesh."""
    return 1 if mesh is None else int(mesh.shape[DATA])


def all_parallel(mesh: Mesh | None) -> int:
    """Devices that share the experts: all."""
    return data_parallel(mesh) * model_parallel(mesh)


def partition(*axes: str | None) -> PartitionSpec:
    """The partition of an array whose axes have these logical names; None is an axis without one."""
    return PartitionSpec(*(None if axis is None else RULES[axis] for axis in axes))


def sharding(mesh: Mesh | None, *axes: str | None) -> NamedSharding | None:
    """The sharding of an array with these logical axes; None without a mesh, which means JAX's default device."""
    if mesh is None:
        return None
    over_all = OVER_ALL if data_parallel(mesh) > 1 else {}
    return NamedSharding(
        mesh, PartitionSpec(*(None if axis is None else (over_all or RULES).get(axis, RULES[axis]) for axis in axes))
    )


def within_shard() -> AbstractMesh | None:
    """The mesh as code sees it that runs for a data shard of its own; None elsewhere."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh if DATA in mesh.manual_axes else None


def devices_along(mesh: Mesh | None, axis: str | None) -> int:
    """Devices that arrays with a logical axis are split over there."""
    where = sharding(mesh, axis)
    if where is None or where.spec[0] is None:
        return 1
    names = (where.spec[0],) if isinstance(where.spec[0], str) else where.spec[0]
    return int(np.prod([where.mesh.shape[name] for name in names]))


def over_model(function: Callable[..., Any], mesh: Mesh, in_specs: Any, out_specs: Any) -> Callable[..., Any]:
    """`function` on every device of the model axis, as `jax.shard_map` has it; specs are those of `partition`."""

    def call(*arguments: Any) -> Any:
        # Inside a data shard the data axis is already mapped; the other axes are in the context.
        axes: dict[str, Any] = {"mesh": mesh} if within_shard() is None else {"axis_names": {MODEL}}
        mapped = jax.shard_map(function, **axes, in_specs=in_specs, out_specs=out_specs, check_vma=False)
        return mapped(*arguments)

    return call


def put(values: np.ndarray, where: Sharding | None) -> jax.Array:
    """`values` on the devices. Where these are of several hosts, each takes the part of its own."""
    if where is None or where.is_fully_addressable:
        return jax.device_put(values, where)
    # JAX would first compare the values of all hosts.
    return jax.make_array_from_callback(values.shape, where, lambda index: values[index])


def constrain(x: jax.Array, mesh: Mesh | None, *axes: str | None) -> jax.Array:
    """`x`, which the compiler is told to lay out by its logical axes. What is partial is summed up here."""
    if model_parallel(mesh) == 1:
        return x
    own = within_shard()
    wanted = sharding(mesh, *axes) if own is None else NamedSharding(own, partition(*axes))
    constrained: jax.Array = jax.lax.with_sharding_constraint(x, wanted)
    return constrained


def token_axis(mesh: Mesh | None, tokens: int) -> str | None:
    """The logical axis by which the residual stream [T, D] of so many tokens is split; None where it is whole."""
    devices = model_parallel(mesh)
    return "tokens" if devices > 1 and tokens >= FEWEST_SPLIT_TOKENS and tokens % devices == 0 else None


def split_kv_heads(num_kv_heads: int, devices: int) -> int:
    """KV heads in the cache of all devices together: each has at least one, so they repeat where there are fewer."""
    return max(num_kv_heads, devices)


def padded_vocab(config: ModelConfig, devices: int) -> int:
    """Size of the vocabulary in the weights: the next that can be split between blocks, the same on one device."""
    return padded_tokens(config.vocab_size, devices)


def padded_tokens(count: int, devices: int) -> int:
    """The same of a matrix with rows for `count` tokens."""
    return count if devices == 1 else count + -count % (VOCAB_BLOCK * devices)


def splits(config: ModelConfig, devices: int, *, expert_parallel: bool = False, shards: int = 1) -> bool:
    """Whether heads and feed-forward layers can be split over so many devices, and experts over those of all shards."""
    for heads, _ in config.kv_heads:
        few, many = sorted((heads, devices))
        if many % few:
            return False
    split = (*(heads for heads, _, _ in config.attention_heads), *config.mlp_sizes(with_experts=False))
    split += config.expert_heads
    split += tuple(plan.groups for plan in config.compressed)
    split += tuple(size for plan in dict.fromkeys(config.recurrences) for size in plan.split_sizes)
    experts = config.expert_counts if expert_parallel else config.expert_sizes
    if not expert_parallel and config.expert_split_problem(devices * shards):
        return False
    return not (any(size % devices for size in split) or any(size % (devices * shards) for size in experts))


def working_sizes(config: ModelConfig, *, expert_parallel: bool = False, shards: int = 1) -> list[int]:
    """All numbers of devices that the model can be split over, in each of so many shards."""
    sizes = range(1, config.num_heads + 1)
    return [devices for devices in sizes if splits(config, devices, expert_parallel=expert_parallel, shards=shards)]
