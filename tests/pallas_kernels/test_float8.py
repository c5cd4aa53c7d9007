"""Floats of 8 bits made wider by integer operations: every number of each type, in either byte of either half."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from jaxllm.pallas_kernels.float8 import FLOATS, bfloat16_pairs


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("dtype", sorted(FLOATS))
def test_every_number_is_exact(dtype: str, which: int) -> None:
    low = np.arange(8 * 128, dtype=np.uint32).reshape(8, 128) % 256
    high = 255 - low
    others = 0xA55A0000 >> 8 | 0x5A
    codes = low << (8 * which) | high << (16 + 8 * which) | (others & (0xFF00FF00 >> (8 * which)))

    def kernel(words: jax.Array, out: jax.Array) -> None:
        out[...] = bfloat16_pairs(words[...], which, dtype)

    with pltpu.force_tpu_interpret_mode():
        shape = jax.ShapeDtypeStruct(codes.shape, jnp.uint32)
        found = np.asarray(pl.pallas_call(kernel, out_shape=shape)(codes.astype(np.uint32)))
    for half, expected in ((found & 0xFFFF, low), (found >> 16, high)):
        numbers = half.astype(np.uint16).view(ml_dtypes.bfloat16).astype(np.float32)
        wanted = expected.astype(np.uint8).view(dtype).astype(np.float32)
        known = np.isfinite(wanted)
        np.testing.assert_array_equal(numbers[known], wanted[known])
        assert (np.signbit(numbers) == np.signbit(wanted))[known].all()
