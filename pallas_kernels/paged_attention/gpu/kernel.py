"""The kernel: two warpgroups compute, a third copies pages; blocks are persistent and stride over the work.

One kernel serves both kinds of work. A unit of work is up to 64 query rows per warpgroup (tokens x the heads of one KV
head) against a range of key tiles. In prefill both warpgroups see every tile, each with its own queries; in decode they
share the queries and take every second tile. The producer runs ahead through a ring of tiles, also across units, so
that memory stays busy while one unit ends and the next begins. Roles of warpgroups, and in prefill their turns at the
tensor cores, are those of FlashAttention-3 (arXiv 2407.08608).
"""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxllm.pallas_kernels.paged_attention.gpu.compute import Unit, Warpgroup
from jaxllm.pallas_kernels.paged_attention.gpu.options import ROWS, WARPGROUPS, KernelOptions


def launch(
    options: KernelOptions,
    units: jax.Array,
    page_table: jax.Array,
    layer: jax.Array,
    scale: jax.Array,
    queries: jax.Array,
    slopes: jax.Array,
    kv: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Attention of all units.

    Args:
        options: what is static.
        units: int32 [U, 8], the fields of `compute.Unit`.
        page_table: int32 [R * W].
        layer: int32 [1].
        scale: float32 [1], factor on the products of queries and stored keys: the scale, times log2(e) without a soft
            cap, or divided by the cap.
        queries: [K * T * G + 2 * ROWS, H], ordered by KV head, token, head of the group; the last rows are padding.
        slopes: float32 [K * ROWS], log2(e) times the ALiBi slope of each row of a warpgroup; not read without
            `options.alibi`.
        kv: [L * P * C, 2K * H], the cache.

    Returns:
        [U * K * 2 * out_rows, H] normalised outputs, and float32 [U * K * 2 * ROWS] base-2 logarithms of the softmax
        denominators, by unit, KV head and warpgroup. What belongs to empty units is unspecified.
    """
    outputs = units.shape[0] * options.num_kv_heads * WARPGROUPS
    shared = functools.partial(_shared, columns=options.columns)
    ring = shared((options.stages, options.tile, options.head_size), options.kv_dtype)
    full = plgpu.Barrier(num_arrivals=options.tile // options.piece, num_barriers=options.stages)
    free = plgpu.Barrier(num_arrivals=1 if options.decode else WARPGROUPS, num_barriers=options.stages)
    converted = {}
    if options.converts:
        converted["converted"] = shared((WARPGROUPS, options.tile, options.head_size), options.dtype)
    run = plgpu.kernel(
        functools.partial(_block, options),
        out_type=(
            jax.ShapeDtypeStruct((outputs * options.out_rows, options.head_size), jnp.dtype(options.dtype)),
            jax.ShapeDtypeStruct((outputs * ROWS,), jnp.float32),
        ),
        scratch_types={
            "io": shared((WARPGROUPS, ROWS, options.head_size), options.dtype),
            "sums": plgpu.SMEM((WARPGROUPS, ROWS), jnp.float32),
            "keys": ring,
            "values": ring,
            "keys_full": full,
            "values_full": full,
            "keys_free": free,
            "values_free": free,
            "turn": plgpu.Barrier(num_arrivals=WARPGROUPS),
        }
        | converted,
        grid=(options.blocks,),
        grid_names=("block",),
        num_threads=WARPGROUPS + 1,
        thread_name="warpgroup",
        compiler_params=plgpu.CompilerParams(approx_math=True),
        kernel_name="paged_attention_decode" if options.decode else "paged_attention_prefill",
        interpret=_interpreter() if options.interpret else None,
    )
    out, sums = run(units.reshape(-1), page_table, layer, scale, queries, slopes, kv)
    return out, sums


def _shared(shape: tuple[int, ...], dtype: str, columns: int) -> Any:
    """Shared memory laid out as copies write it and wgmma reads it, in tiles of at most so many columns."""
    size = jnp.dtype(dtype).itemsize
    swizzle = min(plgpu.find_swizzle(shape[-1] * size * 8), columns * size)
    transforms = (plgpu.TilingTransform((8, swizzle // size)), plgpu.SwizzleTransform(swizzle))
    return plgpu.SMEM(shape, jnp.dtype(dtype), transforms=transforms)


def _interpreter() -> Any:
    from jax._src.pallas.mosaic_gpu.interpret.params import InterpretGPUParams  # Not public in JAX 0.10.

    return InterpretGPUParams(detect_races=True)


@dataclass(frozen=True)
class _Inputs:
    """References to what a launch was given, in global memory."""

    units: Any
    page_table: Any
    layer: Any
    scale: Any
    queries: Any
    slopes: Any
    kv: Any


def _block(options: KernelOptions, *refs: Any, **scratch: Any) -> None:
    """The work of one block: items of work, one for each unit and KV head, every `options.blocks`-th of them."""
    inputs, (out, sums) = _Inputs(*refs[:-2]), refs[-2:]
    warpgroup = lax.axis_index("warpgroup")
    block = lax.axis_index("block")
    items = Unit.read(inputs.units, jnp.int32(0)).used * options.num_kv_heads
    mine = lax.div(items - block + (options.blocks - 1), jnp.int32(options.blocks))

    def each_item(visit: Any) -> Any:
        def step(index: jax.Array, counter: jax.Array) -> jax.Array:
            item = block + index * options.blocks
            if not options.decode:
                item = items - 1 - item  # The last queries of a prompt see the most keys: long units first.
            head = lax.rem(item, jnp.int32(options.num_kv_heads))
            unit = Unit.read(inputs.units, lax.div(item, jnp.int32(options.num_kv_heads)))
            pl.when(unit.first < unit.end)(functools.partial(visit, item, head, unit, counter))
            return counter + (unit.end - unit.first)

        return lax.fori_loop(0, mine, step, jnp.int32(0))

    @pl.when(warpgroup < WARPGROUPS)
    def _compute() -> None:
        plgpu.set_max_registers(options.registers[0], action="increase")
        computing = Warpgroup(options, inputs, warpgroup, scratch)
        each_item(functools.partial(computing.attend, out=out, out_sums=sums))

    @pl.when(warpgroup == WARPGROUPS)
    def _copy() -> None:
        plgpu.set_max_registers(options.registers[1], action="decrease")
        copied = each_item(functools.partial(_fill, options, inputs, scratch))

        @pl.loop(jnp.maximum(copied - options.stages, 0), copied)
        def _wait_until_free(index: jax.Array) -> None:
            slot = lax.rem(index, jnp.int32(options.stages))
            plgpu.barrier_wait(scratch["keys_free"].at[slot])
            plgpu.barrier_wait(scratch["values_free"].at[slot])


def _fill(
    options: KernelOptions,
    inputs: _Inputs,
    scratch: dict[str, Any],
    item: jax.Array,
    head: jax.Array,
    unit: Unit,
    counter: jax.Array,
) -> None:
    """Copy the tiles of a unit into the ring; `counter` tiles were copied before."""
    del item
    size, piece = options.head_size, options.piece
    last = inputs.page_table.shape[0] - 1
    pages = inputs.kv.shape[0] // (options.layers * options.page_size)
    first_page = inputs.layer[0] * pages

    @pl.loop(unit.first, unit.end)
    def _tile(tile: jax.Array) -> None:
        turn = counter + (tile - unit.first)
        slot = lax.rem(turn, jnp.int32(options.stages))
        starts = []
        for part in range(options.tile // piece):
            key = tile * options.tile + part * piece
            # The end of a last tile may lie beyond the table: whatever is copied instead is masked.
            entry = jnp.minimum(unit.table + lax.div(key, jnp.int32(options.page_size)), last)
            offset = lax.rem(key, jnp.int32(options.page_size))
            page = first_page + inputs.page_table[entry]
            starts.append(pl.multiple_of(page * options.page_size + offset, 8))
        for name, column in (("keys", head * (2 * size)), ("values", head * (2 * size) + size)):
            pl.when(turn >= options.stages)(functools.partial(plgpu.barrier_wait, scratch[name + "_free"].at[slot]))
            for part, start in enumerate(starts):
                plgpu.copy_gmem_to_smem(
                    inputs.kv.at[pl.ds(start, piece), pl.ds(column, size)],
                    scratch[name].at[slot, pl.ds(part * piece, piece)],
                    scratch[name + "_full"].at[slot],
                )
