"""New keys and values on their way into pages of int8, with a scale for each token and head."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from jaxllm.pallas_kernels.cpu_common.attention_softmax import ONE, ZERO
from jaxllm.pallas_kernels.cpu_common.attention_words import W_C, W_H, W_KV_STRIDE, W_NEW_K, W_NEW_V, W_POSITIONS
from jaxllm.pallas_kernels.cpu_common.bfloat16 import load_narrow
from jaxllm.pallas_kernels.cpu_common.memory import byte, compiled, int32, set_byte, set_real, word
from jaxllm.pallas_kernels.cpu_common.movers import finite
from jaxllm.pallas_kernels.cpu_common.vectors import (
    BYTE,
    INTS,
    LANES,
    emit_load,
    emit_maximum,
    load,
    max_lanes,
    maximum,
    number,
    operation,
    pointer,
    splat,
    store,
    vector,
)
from jaxllm.pallas_kernels.paged_attention.cpu.rotate import make_rotate
from jaxllm.pallas_kernels.paged_attention.cpu.work import key_and_value_at
from jaxllm.pallas_kernels.paged_attention.dynamic_scales import INVERSE, LARGEST, SMALLEST

_LARGEST, _SMALLEST, _INVERSE = np.float32(LARGEST), np.float32(SMALLEST), np.float32(INVERSE)
_ROUNDING = float(3 << 22)
"""A number whose last place is worth 1: adding it rounds to whole numbers, halves to even ones."""


def _emit_magnitudes(builder: ir.IRBuilder, address: ir.Value, offset: ir.Value) -> ir.Value:
    value = finite(builder, emit_load(builder, address, offset))
    return emit_maximum(builder, value, builder.fsub(number(0.0), value))


def _emit_quantise(builder: ir.IRBuilder, to: ir.Value, source: ir.Value, offset: ir.Value, factor: ir.Value) -> None:
    value = builder.fmul(finite(builder, emit_load(builder, source, offset)), factor)
    rounded = builder.fsub(builder.fadd(value, number(_ROUNDING)), number(_ROUNDING))
    narrow = ir.VectorType(BYTE, LANES)
    bits = builder.trunc(builder.fptosi(rounded, INTS), narrow)
    builder.store(bits, builder.bitcast(pointer(builder, to, offset, BYTE), narrow.as_pointer()), align=1)


_word = types.intp
_magnitudes = operation(vector, (_word, _word), _emit_magnitudes)
"""Absolute values of a vector, 0 for what is not finite."""
_quantise = operation(types.void, (_word, _word, _word, vector), _emit_quantise)
"""`_quantize(to, source, offset, factor)`: a vector times a factor, as int8."""


@compiled
def _quantise_head(source: int, to: int, scale_at: int, head_size: int) -> None:
    """Write a float32 head as int8 to `to`, and its scale; see `dynamic_scales.quantized`."""
    largest = _magnitudes(source, 0)
    for place in range(LANES, head_size, LANES):
        largest = maximum(largest, _magnitudes(source, place))
    most = max_lanes(largest)
    is_zero = most < _SMALLEST
    set_real(scale_at, 0, ZERO if is_zero else most * _INVERSE)
    factor = splat(ZERO if is_zero else _LARGEST / most)
    for place in range(0, head_size, LANES):
        _quantise(to, source, place, factor)


def make_scaled_write(*, is_narrow: bool) -> Any:
    """The function that writes, from float32, or if `is_narrow` from bfloat16."""
    source_bytes, load_from = (2, load_narrow) if is_narrow else (4, load)
    rotate = make_rotate(load_from, store)

    @compiled
    def write(work: int, row: int, first: int, last: int, head: int, scratch: int) -> None:
        """Put keys and values of a row's tokens from `first` up to `last` into their pages. Keys are rotated first."""
        head_size, page_size, stride = word(work, W_H), word(work, W_C), word(work, W_KV_STRIDE)
        numbers = scratch + 4 * head_size
        for token in range(first, last):
            position = int32(word(work, W_POSITIONS), token)
            key, value, key_scale, value_scale = key_and_value_at(work, row, position, head)
            source = source_bytes * (token * stride + head * head_size)
            rotate(work, token, word(work, W_NEW_K) + source, scratch, ONE)
            _quantise_head(scratch, numbers, key_scale, head_size)
            for place in range(head_size):
                set_byte(key, place * page_size, byte(numbers, place))
            for place in range(0, head_size, LANES):
                store(scratch, place, load_from(word(work, W_NEW_V) + source, place))
            _quantise_head(scratch, value, value_scale, head_size)

    return write
