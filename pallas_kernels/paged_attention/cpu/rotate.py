"""The rotary embedding (arXiv 2104.09864) of a head on its way from one place to another."""

from typing import Any

import numpy as np

from jaxllm.pallas_kernels.cpu_common.attention_words import W_COS, W_H, W_SIN
from jaxllm.pallas_kernels.cpu_common.memory import compiled, word
from jaxllm.pallas_kernels.cpu_common.vectors import LANES, add, load, multiply, splat, store, subtract


def make_rotate(load_from: Any, store_to: Any) -> Any:
    """`rotate`, for heads that are read and written by these functions."""

    @compiled
    def rotate(work: int, token: int, source: int, to: int, factor: float | np.float32) -> None:
        """Turn the pairs (i, i + H/2) of a head by a token's angles, if there are any, and multiply by `factor`."""
        head_size = word(work, W_H)
        if word(work, W_COS) == 0:
            for place in range(0, head_size, LANES):
                store_to(to, place, multiply(load_from(source, place), splat(factor)))
            return
        half = head_size // 2
        for place in range(0, half, LANES):
            cos, sin = load(word(work, W_COS), token * half + place), load(word(work, W_SIN), token * half + place)
            x, y = load_from(source, place), load_from(source, half + place)
            store_to(to, place, multiply(subtract(multiply(x, cos), multiply(y, sin)), splat(factor)))
            store_to(to, half + place, multiply(add(multiply(y, cos), multiply(x, sin)), splat(factor)))

    return rotate


rotate = make_rotate(load, store)
"""`rotate(work, token, source, to, factor)` of a float32 head."""
