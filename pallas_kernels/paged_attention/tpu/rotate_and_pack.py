"""The rotary embedding (arXiv 2104.09864) and the packing for the TPU kernels of attention, in one pass over memory.

XLA rotates halves of a head, which are half a register wide, and moves what it packs through several layouts. Here a
head of 128 is a row of lanes: rotating its lanes by half pairs each element with its partner. Two heads, or a key and
its value, are then the halves of a word. Tokens lie along sublanes in the product and heads in what the kernels take,
so that a store with a stride is all that turns them around.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from jaxllm.pallas_kernels.paged_attention.options import HeadNorms
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
    norms: HeadNorms | None = None,
    interpret: Any = False,
) -> tuple[jax.Array, jax.Array]:
    """What `pack_q` and `pack_kv` make of queries, keys and values, once queries and keys are rotated.

    Args:
        qkv: [T, (K * G + 2 K) * 128]: the query heads of a token, then its keys, then its values.
        rotation: cosine and sine, float32 [T, 64], of the angles by which the pairs (i, i + 64) are turned.
        dims: heads of 128, and a cache of bfloat16 or float32.
        in_words: whether keys and values come as those of `pack_kv_words`.
        norms: of query and key heads, before the rotation.
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

    weights = [] if norms is None else [each.astype(jnp.float32)[None] for each in (norms.query, norms.key)]
    options = _Options(dims, None if norms is None else norms.epsilon, is_interpreted)
    rows, new = pl.pallas_call(
        partial(_kernel, options=options),
        grid=(pl.cdiv(tokens, block),),
        in_specs=[
            *[of_block((block, size)) for size in (qkv.shape[1], half, half)],
            *[pl.BlockSpec((1, LANES), lambda index: (0, 0))] * len(weights),
        ],
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
    )(qkv, *rotation, *weights)
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


class _Memory(NamedTuple):
    """References of the kernel; results are as in `rotate_and_pack`, or interpreted their rows of words."""

    qkv: Ref
    cos: Ref
    sin: Ref
    weights: Sequence[Ref]
    """[1, 128] of query heads and of key heads, if there are norms."""
    q: Ref
    kv: Ref


class _Tokens:
    """Some tokens of a block, as the methods trace what is made of them."""

    def __init__(self, memory: _Memory, number: Any, together: int, options: "_Options") -> None:
        self.memory, self.together, self.options = memory, together, options
        self.first = pl.multiple_of(number * together, together)
        self.here = pl.ds(self.first, together)
        cosine, sine = (jnp.concatenate([ref[self.here]] * 2, axis=1) for ref in (memory.cos, memory.sin))
        is_first = lax.broadcasted_iota(jnp.int32, sine.shape, 1) < LANES // 2
        self.cosine, self.sine = cosine, jnp.where(is_first, -sine, sine)
        # A sum over lanes takes long. Before anything is stored, each hides what the others wait for.
        normalised = 0 if options.epsilon is None else options.num_heads + options.dims.num_kv_heads
        self.scales = [self.scale(index) for index in range(normalised)]

    def queries(self) -> None:
        """Rotate and store all queries."""
        dims = self.options.dims
        for row in range(dims.num_kv_heads * dims.group_words):
            heads = [self.rotated(head) for head in self.in_row(row)]
            missing = dims.q_packing - len(heads)
            self.store(self.memory.q, dims.num_kv_heads * dims.group_words, row, heads, missing)

    def in_row(self, row: int) -> range:
        """The query heads of a row of words."""
        dims = self.options.dims
        kv_head, word = divmod(row, dims.group_words)
        begin = kv_head * dims.group + word * dims.q_packing
        return range(begin, min(begin + dims.q_packing, (kv_head + 1) * dims.group))

    def keys_and_values(self) -> None:
        """Rotate all keys, and store them and values."""
        dims, first = self.options.dims, self.options.num_heads
        for head in range(dims.num_kv_heads):
            both = [self.rotated(first + head), self.head(first + dims.num_kv_heads + head)]
            both = [_finite(each, self.memory.qkv.dtype) for each in both]
            for row in range(2 // dims.kv_packing):
                part = both[row * dims.kv_packing :][: dims.kv_packing]
                self.store(self.memory.kv, dims.packs, head * 2 // dims.kv_packing + row, part)

    def head(self, index: int) -> jax.Array:
        """A head as the product gives it, float32 [together, 128]."""
        return self.memory.qkv[self.here, pl.ds(index * LANES, LANES)].astype(jnp.float32)

    def scale(self, index: int) -> jax.Array:
        """What a norm multiplies a head with, [together, 1]."""
        x, epsilon = self.head(index), self.options.epsilon
        assert epsilon is not None
        return lax.rsqrt(jnp.sum(x * x, axis=1, keepdims=True) * (1 / LANES) + epsilon)

    def rotated(self, index: int) -> jax.Array:
        """A query or key head, normalised and rotated."""
        x = self.head(index)
        if self.scales:
            x = x * self.scales[index] * self.memory.weights[0 if index < self.options.num_heads else 1][...]
            x = x.astype(self.memory.qkv.dtype).astype(jnp.float32)
        return x * self.cosine + pltpu.roll(x, LANES // 2, 1) * self.sine

    def store(self, ref: Ref, rows: int, row: int, values: Sequence[jax.Array], missing: int = 0) -> None:
        """Put the words of `values`, and of zeros for those missing, where `row` is of the `rows` of each token."""
        values = [*values, *[jnp.zeros_like(self.cosine)] * missing]
        if self.options.is_interpreted:
            view, words = ref.at[pl.ds(self.first * rows, self.together * rows)], _bits(values)
        else:
            view, words = ref.at[self.here], _word(values)
            view = (view if view.dtype == words.dtype else view.bitcast(words.dtype)).reshape(-1, LANES)
        view[pl.ds(row, self.together, stride=rows)] = words


@dataclass(frozen=True)
class _Options:
    """Static choices: heads, what is beneath the root in norms, None without, and whether this is interpreted."""

    dims: Dims
    epsilon: float | None
    is_interpreted: bool

    @property
    def num_heads(self) -> int:
        """Query heads, after which keys come."""
        return self.dims.num_kv_heads * self.dims.group


def _kernel(qkv: Ref, cos: Ref, sin: Ref, *refs: Ref, options: _Options) -> None:
    """One block of tokens."""
    *weights, q, kv = refs
    memory, together = _Memory(qkv, cos, sin, weights, q, kv), min(qkv.shape[0], TOGETHER)

    def some(number: Any, _: None) -> None:
        tokens = _Tokens(memory, number, together, options)
        tokens.queries()
        tokens.keys_and_values()

    heads = options.num_heads + 2 * options.dims.num_kv_heads
    lax.fori_loop(0, qkv.shape[0] // together, some, None, unroll=times_written(heads))


def _finite(values: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """`values` of float32, rounded to the type of the activations, with 0 for what is not finite in it."""
    values = values.astype(dtype).astype(jnp.float32)
    return jnp.where(jnp.abs(values) < jnp.inf, values, 0.0)


def _word(values: Sequence[jax.Array]) -> jax.Array:
    """Words of as many values of float32 as fit: themselves, or two as bfloat16, the first in the lower half."""
    return values[0] if len(values) == 1 else pltpu.pack_elementwise(values, packed_dtype=jnp.bfloat16)


def _bits(values: Sequence[jax.Array]) -> jax.Array:
    """`_word` for the interpreter, as uint32."""
    if len(values) == 1:
        return lax.bitcast_convert_type(values[0], jnp.uint32)
    low, high = (lax.bitcast_convert_type(each.astype(jnp.bfloat16), jnp.uint16).astype(jnp.uint32) for each in values)
    return low | high << jnp.uint32(16)


def _elements(words: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """The elements of rows of words [n, 128], [n, packing, 128]."""
    return lax.bitcast_convert_type(words, dtype).reshape(len(words), LANES, -1).swapaxes(1, 2)
