"""The rotary embedding (arXiv 2104.09864) and the packing for the TPU kernels of attention, in one pass over memory.

XLA rotates halves of a head, which are half a register wide, and moves what it packs through several layouts. Here a
head of 128 is a row of lanes: rotating its lanes by half pairs each element with its partner. Two heads, or a key and
its value, are then the halves of a word. Tokens lie along sublanes in the product and heads in what the kernels take,
so that a store with a stride is all that turns them around.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from jaxllm.pallas_kernels.paged_attention.tpu.layout import Dims
from jaxllm.pallas_kernels.tpu_common.constants import LANES, Ref

_BLOCK_BYTES = 2 << 20
"""Bytes of a block of the product, at most. VMEM holds it twice, and what is made of it."""

VMEM_BYTES = 16 * _BLOCK_BYTES
"""Room for these, and for values in flight."""

TOGETHER = 32
"""Tokens that are computed together: few enough for their angles to stay in registers."""


def rotate_and_pack(
    qkv: jax.Array,
    rotation: tuple[jax.Array, jax.Array],
    dims: Dims,
    *,
    in_words: bool,
    interpret: Any = False,
) -> tuple[jax.Array, jax.Array]:
    """What `pack_q` and `pack_kv` make of queries, keys and values, once queries and keys are rotated.

    Args:
        qkv: [T, (K * G + 2 K) * 128]: the query heads of a token, then its keys, then its values.
        rotation: cosine and sine, float32 [T, 64], of the angles by which the pairs (i, i + 64) are turned.
        dims: heads of 128, and a cache of bfloat16 or float32.
        in_words: whether keys and values come as those of `pack_kv_words`.
        interpret: see `pallas_call`.
    """
    tokens, half = len(qkv), rotation[0].shape[1]
    block = block_tokens(tokens, qkv.shape[1] * qkv.dtype.itemsize)
    q_rows, is_interpreted = dims.num_kv_heads * dims.group_words, interpret is not False
    q_block: tuple[int, ...] = (block, dims.num_kv_heads, dims.group_words, dims.q_packing, LANES)
    kv_block: tuple[int, ...] = (block, dims.packs, 1 if in_words else dims.kv_packing, LANES)
    q_dtype, kv_dtype = qkv.dtype, jnp.dtype("uint32" if in_words else dims.kv_dtype)
    if is_interpreted:
        # The interpreter has no views of memory as words.
        q_block, kv_block = (block * q_rows, LANES), (block * dims.packs, LANES)
        q_dtype = kv_dtype = jnp.dtype("uint32")

    def of_block(shape: tuple[int, ...]) -> pl.BlockSpec:
        return pl.BlockSpec(shape, lambda index: (index, *(0 for _ in shape[1:])))

    rows, new = pl.pallas_call(
        partial(_kernel, dims=dims, is_interpreted=is_interpreted),
        grid=(pl.cdiv(tokens, block),),
        in_specs=[of_block((block, size)) for size in (qkv.shape[1], half, half)],
        out_specs=[of_block(q_block), of_block(kv_block)],
        out_shape=[
            jax.ShapeDtypeStruct((tokens * shape[0] // block, *shape[1:]), dtype)
            for shape, dtype in ((q_block, q_dtype), (kv_block, kv_dtype))
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel",), vmem_limit_bytes=VMEM_BYTES, disable_bounds_checks=True
        ),
        interpret=interpret,
        name="rotate_and_pack",
    )(qkv, *rotation)
    if is_interpreted:
        rows = _elements(rows, qkv.dtype).reshape(tokens, dims.num_kv_heads, dims.group_words, dims.q_packing, LANES)
        new = new if in_words else _elements(new, jnp.dtype(dims.kv_dtype))
        new = new.reshape(tokens, dims.packs, -1, LANES)
    return rows, new


def block_tokens(tokens: int, token_bytes: int) -> int:
    """Tokens of a block: all if they are few, else a multiple of those computed together, in blocks of one size."""
    if tokens <= TOGETHER:
        return tokens
    most = max(1, _BLOCK_BYTES // token_bytes // TOGETHER)
    units = pl.cdiv(tokens, TOGETHER)
    return min(pl.cdiv(units, pl.cdiv(units, most)), tokens // TOGETHER) * TOGETHER


def times_written(heads: int) -> int:
    """How often a loop's body is written out: with few heads, the units would wait for one another's results."""
    return max(1, min(4, 32 // heads))


def _kernel(qkv: Ref, cos: Ref, sin: Ref, q: Ref, kv: Ref, *, dims: Dims, is_interpreted: bool) -> None:
    """One block of tokens. `q` and `kv` are as in `rotate_and_pack`; interpreted, they are their rows of words."""
    tokens, group, kv_heads = qkv.shape[0], dims.group, dims.num_kv_heads
    together = min(tokens, TOGETHER)
    num_heads, q_rows = kv_heads * group, kv_heads * dims.group_words

    def some(number: Any, _: None) -> None:
        first = pl.multiple_of(number * together, together)
        here = pl.ds(first, together)
        cosine, sine = (jnp.concatenate([ref[here]] * 2, axis=1) for ref in (cos, sin))
        sine = jnp.where(lax.broadcasted_iota(jnp.int32, sine.shape, 1) < LANES // 2, -sine, sine)

        def head(index: int) -> jax.Array:
            return qkv[here, pl.ds(index * LANES, LANES)].astype(jnp.float32)

        def rotated(index: int) -> jax.Array:
            x = head(index)
            return x * cosine + pltpu.roll(x, LANES // 2, 1) * sine

        def store(ref: Ref, rows: int, row: int, values: list[jax.Array]) -> None:
            """Put the words of `values` where `row` is, of the `rows` that a token has."""
            if is_interpreted:
                view, words = ref.at[pl.ds(first * rows, together * rows)], _bits(values)
            else:
                view = ref.at[here] if len(values) == 1 or ref.dtype == jnp.uint32 else ref.at[here].bitcast(jnp.uint32)
                view, words = view.reshape(together * rows, LANES), _word(values)
            view[pl.ds(row, together, stride=rows)] = words

        for row in range(q_rows):
            begin = row // dims.group_words * group + row % dims.group_words * dims.q_packing
            end = (row // dims.group_words + 1) * group
            heads = [rotated(each) for each in range(begin, min(begin + dims.q_packing, end))]
            store(q, q_rows, row, heads + [jnp.zeros_like(cosine)] * (dims.q_packing - len(heads)))
        for index in range(kv_heads):
            values = [rotated(num_heads + index), head(num_heads + kv_heads + index)]
            values = [_finite(each, qkv.dtype) for each in values]
            for row in range(2 // dims.kv_packing):
                part = values[row * dims.kv_packing :][: dims.kv_packing]
                store(kv, dims.packs, index * 2 // dims.kv_packing + row, part)

    lax.fori_loop(0, tokens // together, some, None, unroll=times_written(num_heads + 2 * kv_heads))


def _finite(values: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """`values` of float32, rounded to the type of the activations, with 0 for what is not finite in it."""
    values = values.astype(dtype).astype(jnp.float32)
    return jnp.where(jnp.abs(values) < jnp.inf, values, 0.0)


def _word(values: list[jax.Array]) -> jax.Array:
    """Words of as many values of float32 as fit: themselves, or two as bfloat16, the first in the lower half."""
    return values[0] if len(values) == 1 else pltpu.pack_elementwise(values, packed_dtype=jnp.bfloat16)


def _bits(values: list[jax.Array]) -> jax.Array:
    """`_word` for the interpreter, as uint32."""
    if len(values) == 1:
        return lax.bitcast_convert_type(values[0], jnp.uint32)
    low, high = (lax.bitcast_convert_type(each.astype(jnp.bfloat16), jnp.uint16).astype(jnp.uint32) for each in values)
    return low | high << jnp.uint32(16)


def _elements(words: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """The elements of rows of words [n, 128], [n, packing, 128]."""
    return lax.bitcast_convert_type(words, dtype).reshape(len(words), LANES, -1).swapaxes(1, 2)
