"""Floats of 8 bits made wider by a few integer operations, for TPUs whose vector units have no such type.

A number's exponent and mantissa, moved to where bfloat16 has them, are that number but for the bias of the exponent,
which is added. What is smaller than the smallest normal number, K, has no hidden 1: its bits make a = K / 2 + x / 2 of
x, which is less than K. So x is 2 a - K there, and min(a, 2 a - K) everywhere. NaN and infinity become large numbers:
caches and weights have none.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu


@dataclass(frozen=True)
class _Float8:
    """Bits of a type's exponent, and its bias."""

    exponent: int
    bias: int


_TYPES = {"float8_e4m3fn": _Float8(4, 7), "float8_e5m2": _Float8(5, 15)}
FLOATS = frozenset(_TYPES)
"""Names of the types."""
_BIAS, _MANTISSA = 127, 7
"""Exponent bias and mantissa bits of bfloat16."""
_BOTH = 0x00010001
"""Factor that puts 16 bits into both halves of a word."""


def widens_by_bits() -> bool:
    """Whether this is the fastest way on the chip that is compiled for.

    Before v6e the vector units do not compute in bfloat16; TPU7x has these types.
    """
    return pltpu.is_tpu_device() and pltpu.get_tpu_info().generation == 6


def bfloat16_pairs(words: jax.Array, which: int, dtype: str) -> jax.Array:
    """Two floats of each word of uint32, as bfloat16 in the halves where they are: the low (0) or high (1) bytes.

    `dtype` is float8_e4m3fn or float8_e5m2. The shape is [n, 128 * k]. To be called in a kernel.
    """
    kind = _TYPES[dtype]
    down = 8 - kind.exponent
    if which == 0:
        magnitude, signs = words << jnp.uint32(8 - down), words << jnp.uint32(8)
    else:
        magnitude, signs = words >> jnp.uint32(down), words
    magnitude &= jnp.uint32((0x7F00 >> down) * _BOTH)
    biased = pltpu.bitcast(magnitude + jnp.uint32(((_BIAS - kind.bias) << _MANTISSA) * _BOTH), jnp.bfloat16)
    smallest = jnp.bfloat16(2.0 ** (1 - kind.bias))
    exact = jnp.minimum(biased, biased + (biased - smallest))
    return pltpu.bitcast(exact, jnp.uint32) | (signs & jnp.uint32(0x8000 * _BOTH))
