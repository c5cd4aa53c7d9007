"""Programs that bring pages of the KV cache, and states of recurrent layers, to arrays of their own and back.

What they take and give has one width each, so that all are compiled at the start. Axis letters: N pages of a call,
L layers, P pages or slots.
"""

import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from jaxllm.executor.compile.program_context import ProgramBody, ProgramContext

if TYPE_CHECKING:
    from jaxllm.executor.resolved import ResolvedConfig

MOST_PAGES, FEW_PAGES = 64, 8
"""Pages of a call, and of one that has less to do."""
MOST_BYTES = 64 << 20
"""Of the pages of a call at most, if it has several."""


def transfer_sizes(resolved: "ResolvedConfig") -> tuple[int, ...]:
    """Pages of the calls that bring pages to the host and back, the fewest first; empty where there are none."""
    if not resolved.config.cache.copies_pages:
        return ()
    most = max(1, min(MOST_PAGES, MOST_BYTES // max(resolved.cache.page_bytes, 1)))
    return tuple(sorted({min(FEW_PAGES, most), most}))


def moves_pages(context: ProgramContext[Any]) -> bool:
    """Whether pages are brought to the host."""
    return bool(context.transfer_sizes and context.state.kv_cache.pages)


def moves_states(context: ProgramContext[Any]) -> bool:
    """Whether states are brought to the host."""
    return bool(context.transfer_sizes and context.state.kv_cache.states)


def page_sizes(context: ProgramContext[Any]) -> tuple[int, ...]:
    """The sizes of programs that move pages."""
    return context.transfer_sizes


def gather_pages_body(context: ProgramContext[Any], size: int) -> ProgramBody:
    """Gives the pages at `places` as an array [N, L, ...]; the first `count` mean something."""
    place = staging_of(context.state.kv_cache.pages[0], size).sharding
    return ProgramBody(gather_pages, (context.host((size,)), context.host()), place)


def scatter_pages_body(context: ProgramContext[Any], size: int) -> ProgramBody:
    """Writes the first `count` pages of an array [N, L, ...] to `places`."""
    staging = staging_of(context.state.kv_cache.pages[0], size)
    return ProgramBody(scatter_pages, (context.host((size,)), context.host(), staging))


def gather_state_body(context: ProgramContext[Any]) -> ProgramBody:
    """Gives the states in a slot as bytes, one array after the other."""
    return ProgramBody(gather_state, (context.host(),), context.whole)


def scatter_state_body(context: ProgramContext[Any]) -> ProgramBody:
    """Writes the states of a slot from their bytes."""
    size = state_size(context.state.kv_cache.states)
    return ProgramBody(scatter_state, (context.host(), context.host((size,), np.uint8)))


def staging_of(pages: jax.ShapeDtypeStruct | jax.Array, size: int) -> jax.ShapeDtypeStruct:
    """So many pages [N, L, ...] of a pool [L, P, ...], split over devices as the pool is."""
    place = pages.sharding
    if isinstance(place, NamedSharding):
        first, _, *others = (*place.spec, None, None)
        place = NamedSharding(place.mesh, PartitionSpec(None, first, *others[: len(pages.shape) - 2]))
    shape = (size, pages.shape[0], *pages.shape[2:])
    return jax.ShapeDtypeStruct(shape, pages.dtype, sharding=place)


def state_size(states: Any) -> int:
    """Bytes of the states in one slot, of arrays [L, P, ...]."""
    sizes = ((each.shape[0], *each.shape[2:], np.dtype(each.dtype).itemsize) for each in jax.tree.leaves(states))
    return sum(map(math.prod, sizes))


def gather_pages(pages: tuple[jax.Array], places: jax.Array, count: jax.Array) -> jax.Array:
    """The pages at the first `count` of `places`, int32 [N], of a pool [L, P, ...], as [N, L, ...]."""
    (pool,) = pages

    def copy(index: jax.Array, staging: jax.Array) -> jax.Array:
        page = lax.dynamic_slice_in_dim(pool, places[index], 1, axis=1)
        return lax.dynamic_update_slice_in_dim(staging, jnp.moveaxis(page, 1, 0), index, axis=0)

    empty = jnp.zeros((places.shape[0], pool.shape[0], *pool.shape[2:]), pool.dtype)
    return lax.fori_loop(0, count.reshape(()), copy, empty)


def scatter_pages(pages: tuple[jax.Array], places: jax.Array, count: jax.Array, staging: jax.Array) -> tuple[jax.Array]:
    """Write the first `count` pages of `staging` [N, L, ...] to `places`, int32 [N], of a pool [L, P, ...]."""
    (pool,) = pages

    def copy(index: jax.Array, pool: jax.Array) -> jax.Array:
        page = lax.dynamic_slice_in_dim(staging, index, 1, axis=0)
        return lax.dynamic_update_slice_in_dim(pool, jnp.moveaxis(page, 0, 1), places[index], axis=1)

    return (lax.fori_loop(0, count.reshape(()), copy, pool),)


def gather_state(states: Any, slot: jax.Array) -> jax.Array:
    """The states in a slot of arrays [L, P, ...], uint8."""
    slot = slot.reshape(())
    each = (lax.dynamic_slice_in_dim(array, slot, 1, axis=1) for array in jax.tree.leaves(states))
    return jnp.concatenate([lax.bitcast_convert_type(array, jnp.uint8).reshape(-1) for array in each])


def scatter_state(states: Any, slot: jax.Array, data: jax.Array) -> Any:
    """Write the states of a slot of arrays [L, P, ...] from their bytes."""
    slot = slot.reshape(())
    leaves, tree = jax.tree.flatten(states)
    written, first = [], 0
    for array in leaves:
        shape = (array.shape[0], 1, *array.shape[2:])
        size = array.dtype.itemsize
        end = first + math.prod(shape) * size
        own = data[first:end].reshape(shape if size == 1 else (*shape, size))
        state = lax.bitcast_convert_type(own, array.dtype)
        written.append(lax.dynamic_update_slice_in_dim(array, state, slot, axis=1))
        first = end
    return jax.tree.unflatten(tree, written)
