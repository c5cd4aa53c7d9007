"""New keys and values on their way into pages."""

from typing import Any

from jaxllm.pallas_kernels.cpu_common.attention_softmax import ONE
from jaxllm.pallas_kernels.cpu_common.attention_words import (
    W_BYTES,
    W_C,
    W_COS,
    W_H,
    W_KV_STRIDE,
    W_NEW_K,
    W_NEW_V,
    W_POSITIONS,
)
from jaxllm.pallas_kernels.cpu_common.memory import compiled, int32, word
from jaxllm.pallas_kernels.cpu_common.movers import make_movers
from jaxllm.pallas_kernels.cpu_common.vectors import LANES
from jaxllm.pallas_kernels.paged_attention.cpu.rotate import rotate
from jaxllm.pallas_kernels.paged_attention.cpu.work import key_and_value_at


def make_write(kind: str, bytes_each: int) -> Any:
    """The function that writes, for a type of cache (NumPy's name) of 1, 2 or 4 bytes."""
    one, line, square = make_movers(kind, bytes_each)

    @compiled
    def write(work: int, row: int, first: int, last: int, head: int, scratch: int) -> None:
        """Put keys and values of a row's tokens from `first` up to `last` into their pages.

        In float32, only finite values (`ragged.quantize` ensures it for other types). Keys are rotated first,
        which takes memory for as many of them as are written together.
        """
        head_size, page_size, bytes_each = word(work, W_H), word(work, W_C), word(work, W_BYTES)
        stride = word(work, W_KV_STRIDE)
        position = int32(word(work, W_POSITIONS), first)
        token = first
        while token < last:
            together = LANES if position % LANES == 0 and token + LANES <= last else 1
            key, value, _, _ = key_and_value_at(work, row, position, head)
            source, step = word(work, W_NEW_K) + (token * stride + head * head_size) * bytes_each, stride
            if word(work, W_COS):
                for each in range(together):
                    rotate(work, token + each, source + 4 * each * stride, scratch + 4 * each * head_size, ONE)
                source, step = scratch, head_size
            if together > 1:
                for place in range(0, head_size, LANES):
                    square(key + place * page_size * bytes_each, page_size, source + place * bytes_each, step)
            else:
                for place in range(head_size):
                    one(key + place * page_size * bytes_each, source + place * bytes_each)
            source = word(work, W_NEW_V) + (token * stride + head * head_size) * bytes_each
            for each in range(together):
                for place in range(0, head_size, LANES):
                    offset = each * head_size + place
                    line(value + offset * bytes_each, source + (each * stride + place) * bytes_each)
            token += together
            position += together

    return write
