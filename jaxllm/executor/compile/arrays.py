"""What programs of an engine's device state are made of, and those that all parts of an engine have."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding

from jaxllm.executor.compile.data_shards import map_over_data_shards
from jaxllm.executor.compile.program import Program, Shapes, of_leaves
from jaxllm.executor.step_program import StageState, StepShape, copy_places, set_pages
from jaxllm.models.causal_lm import CausalLM
from jaxllm.models.sharding import sharding
from jaxllm.pallas_kernels.cpu_common.zeros import zeros

State = TypeVar("State", bound=StageState)

LEAF: Any = 0
"""Of a program's `result`."""


@dataclass(frozen=True)
class Arrays(Generic[State]):
    """The model's graph, and the shapes of all that programs take."""

    graph: nnx.GraphDef[CausalLM]
    parameters: Shapes
    state: State
    shape: StepShape
    mesh: Mesh | None
    uses_native_kernels: bool
    precision: str | None

    def host(self, shape: tuple[int, ...] = (), dtype: Any = np.int32, *axes: str | None) -> jax.ShapeDtypeStruct:
        """An array that comes from the host, whole on every device unless `axes` say otherwise."""
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding(self.mesh, *axes))

    def of_shards(self, *shape: int) -> jax.ShapeDtypeStruct:
        """An int32 array that comes from the host, one of `shape` for each data shard, along its first axis."""
        shards = self.shape.shards
        if shards == 1:
            return self.host(shape)
        first, *others = shape or (1,)
        return self.host((shards * first, *others), np.int32, "shards")

    @property
    def slots(self) -> int:
        """Those of a data shard."""
        return int(self.state.page_table.shape[0]) // self.shape.shards

    @property
    def by_shard(self) -> NamedSharding | None:
        """Where results go that each shard has for its rows."""
        return sharding(self.mesh, "shards") if self.shape.shards > 1 else self.whole

    @property
    def whole(self) -> NamedSharding | None:
        """Where results go that the host reads."""
        return sharding(self.mesh)

    def program(self, name: str, function: Callable[..., Any], *others: Shapes, **options: Any) -> Program:
        """A program of the parameters and `others`."""
        return of_leaves(name, function, self.parameters, *others, precision=self.precision, mesh=self.mesh, **options)


def make_empty_state(arrays: Arrays[Any]) -> Program:
    """Makes the state, all zeros."""

    def empty_state() -> StageState:
        state = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), arrays.state)
        if not arrays.uses_native_kernels:
            return state
        return replace(state, kv_cache=jax.tree.map(lambda leaf: zeros(leaf.shape, leaf.dtype), arrays.state.kv_cache))

    return Program(empty_state, (), arrays.state, out_shardings=shardings(arrays.state), mesh=arrays.mesh)


def make_set_pages(arrays: Arrays[Any]) -> Program:
    """See `set_pages`."""
    table, rows = arrays.state.page_table, arrays.shape.rows_at_once
    arguments = (table, arrays.host((rows,)), arrays.host((rows, table.shape[1])))
    program = Program(set_pages, arguments, LEAF, donated=(0,), out_shardings=shardings(table), mesh=arrays.mesh)
    return map_over_data_shards(program)


def make_copy_pages(arrays: Arrays[Any]) -> Program:
    """Copies pages of the KV cache, see `copy_places`."""
    pages = arrays.state.kv_cache.pages
    # In one step, each slot can get a copy of one page of each table.
    copies = arrays.slots * arrays.shape.num_tables
    return make_copies(arrays, pages, copies)


def make_copies(arrays: Arrays[Any], copied: Any, most: int) -> Program:
    """Copies places of arrays, at most so many; see `copy_places`."""
    arguments = (copied, arrays.of_shards(2, most), arrays.of_shards())
    places = shardings(copied)
    return map_over_data_shards(
        Program(copy_places, arguments, copied, donated=(0,), out_shardings=places, mesh=arrays.mesh)
    )


def shardings(state: Any) -> Any:
    """Where the leaves of a device state stay."""
    return jax.tree.map(lambda leaf: leaf.sharding, state)
