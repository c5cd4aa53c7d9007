"""New keys and values of bfloat16 on their way into pages of pairs.

Keys of a head are [H / 2, C, 2], values [C / 2, H, 2]: a word of 32 bits holds two neighbouring numbers of a key, or
the same number of the values of two tokens. The second token may come in a later step, or be written by another thread
at the same time, so nothing but its own half of a word is written for a single token.
"""

from llvmlite import ir
from numba.core import cgutils, types

from jaxllm.pallas_kernels.cpu_common.attention_softmax import ONE
from jaxllm.pallas_kernels.cpu_common.attention_words import W_C, W_H, W_KV_STRIDE, W_NEW_K, W_NEW_V, W_POSITIONS
from jaxllm.pallas_kernels.cpu_common.bfloat16 import emit_narrow, load_narrow
from jaxllm.pallas_kernels.cpu_common.memory import compiled, int32, word
from jaxllm.pallas_kernels.cpu_common.movers import finite, make_movers
from jaxllm.pallas_kernels.cpu_common.vectors import (
    INT,
    INTS,
    LANES,
    WORD,
    emit_load,
    emit_maximum,
    integer,
    number,
    operation,
    pointer,
    vector,
)
from jaxllm.pallas_kernels.paged_attention.cpu.rotate import make_rotate
from jaxllm.pallas_kernels.paged_attention.cpu.work import key_and_value_at

_LARGEST = 3.3895313892515355e38
"""The largest bfloat16: what is beyond it would be rounded to infinity."""
_SHORTS = ir.VectorType(ir.IntType(16), LANES)


def _emit_finite(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Float32 as 16 bits each of finite bfloat16, 0 for what is not finite."""
    low = emit_maximum(builder, finite(builder, value), number(-_LARGEST))
    return emit_narrow(builder, builder.select(builder.fcmp_ordered(">", low, number(_LARGEST)), number(_LARGEST), low))


def _emit_store(builder: ir.IRBuilder, address: ir.Value, offset: ir.Value, value: ir.Value) -> None:
    place = builder.bitcast(pointer(builder, address, offset, ir.IntType(16)), _SHORTS.as_pointer())
    builder.store(_emit_finite(builder, value), place, align=2)


def _words(builder: ir.IRBuilder, source: ir.Value) -> ir.Value:
    """`LANES` bfloat16 at an address, finite, in words."""
    zero = ir.Constant(WORD, 0)
    return builder.zext(_emit_finite(builder, emit_load(builder, source, zero, "bfloat16")), INTS)


def _place(builder: ir.IRBuilder, to: ir.Value) -> ir.Value:
    return builder.inttoptr(to, INTS.as_pointer())


def _emit_both(builder: ir.IRBuilder, to: ir.Value, first: ir.Value, second: ir.Value) -> None:
    lower, upper = (_words(builder, source) for source in (first, second))
    builder.store(builder.or_(lower, builder.shl(upper, integer(16))), _place(builder, to), align=4)


def _emit_half(builder: ir.IRBuilder, to: ir.Value, source: ir.Value, is_second: ir.Value) -> None:
    value = _words(builder, source)
    halves = ir.VectorType(ir.IntType(16), 2 * LANES)
    kind = ir.FunctionType(ir.VoidType(), [halves, halves.as_pointer(), INT, ir.VectorType(ir.IntType(1), 2 * LANES)])
    masked = cgutils.get_or_insert_function(builder.module, kind, f"llvm.masked.store.v{2 * LANES}i16.p0")
    place = builder.inttoptr(to, halves.as_pointer())
    with builder.if_else(builder.trunc(is_second, ir.IntType(1))) as (second, first):
        for branch, shift, mask in ((second, 16, [0, 1]), (first, 0, [1, 0])):
            with branch:
                numbers = builder.bitcast(builder.shl(value, integer(shift)), halves)
                builder.call(masked, [numbers, place, ir.Constant(INT, 2), ir.Constant(kind.args[3], mask * LANES)])


_word = types.intp
_store_finite = operation(types.void, (_word, _word, vector), _emit_store)
_both = operation(types.void, (_word, _word, _word), _emit_both)
"""`_both(to, first, second)`: `LANES` numbers of two tokens, in words."""
_half = operation(types.void, (_word, _word, _word), _emit_half)
"""`_half(to, source, is_second)`: `LANES` numbers of a token, in one half of words whose other half stays."""
_one, _, _square = make_movers("int32", 4)
_rotate = make_rotate(load_narrow, _store_finite)


@compiled
def write_pairs(work: int, row: int, first: int, last: int, head: int, scratch: int) -> None:
    """Put keys and values of a row's tokens from `first` up to `last` into their pages, as far as they are finite.

    Keys are rotated first, in float32, which takes memory for as many of them as are written together.
    """
    head_size, page_size, stride = word(work, W_H), word(work, W_C), word(work, W_KV_STRIDE)
    position, token, pairs = int32(word(work, W_POSITIONS), first), first, word(work, W_H) // 2
    while token < last:
        together = LANES if position % LANES == 0 and token + LANES <= last and pairs >= LANES else 1
        key = key_and_value_at(work, row, position, head)[0]
        for each in range(together):
            source = word(work, W_NEW_K) + 2 * ((token + each) * stride + head * head_size)
            _rotate(work, token + each, source, scratch + 2 * each * head_size, ONE)
        if together > 1:
            for begin in range(0, pairs, LANES):
                # Where squares do not fill a head, the last one writes some pairs again.
                place = min(begin, pairs - LANES)
                _square(key + 4 * place * page_size, page_size, scratch + 4 * place, pairs)
        else:
            for place in range(pairs):
                _one(key + 4 * place * page_size, scratch + 4 * place)
        token += together
        position += together
    position, token = int32(word(work, W_POSITIONS), first), first
    while token < last:
        value = key_and_value_at(work, row, position // 2 * 2, head)[1]
        source = word(work, W_NEW_V) + 2 * (token * stride + head * head_size)
        together = 2 if position % 2 == 0 and token + 1 < last else 1
        for place in range(0, head_size, LANES):
            if together > 1:
                _both(value + 4 * place, source + 2 * place, source + 2 * (stride + place))
            else:
                _half(value + 4 * place, source + 2 * place, position % 2)
        token += together
        position += together
