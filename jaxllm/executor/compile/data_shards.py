"""Programs whose arrays lie on several data shards: each runs as if its shard were all there is.

The data axis of the mesh is manual in them (`jax.shard_map`): every shard has its own part of the device state and of
what the host gives, and the compiler splits what is within a shard over the model axis, as it does for one shard. So a
step has no collective over the data axis but those that a layer asks for.
"""

from dataclasses import replace
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from jaxllm.executor.compile.program import Program
from jaxllm.models.sharding import DATA, data_parallel


def map_over_data_shards(program: Program) -> Program:
    """A program of arrays of all shards, from one of a shard's arrays; the same program where there is one shard."""
    mesh = program.mesh
    if mesh is None or data_parallel(mesh) == 1:
        return program
    takes, gives = (jax.tree.map(_data_spec, tree) for tree in (_shardings(program.arguments), program.out_shardings))
    function = jax.shard_map(
        program.function, mesh=mesh, in_specs=takes, out_specs=gives, axis_names={DATA}, check_vma=False
    )
    return replace(program, function=function)


def _shardings(arguments: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.sharding, arguments)


def _data_spec(sharding: NamedSharding) -> PartitionSpec:
    """The part of a sharding over the data axis."""
    return PartitionSpec(
        *(DATA if DATA in (axes if isinstance(axes, tuple) else (axes,)) else None for axes in sharding.spec)
    )
