"""Codes of four bits as signed integers of four bits, from which a few operations make the numbers they stand for.

INT4, UINT4     the code less 8: the number, or the number less 8, which offsets bring
FP4             the sign times the place among 0, 0.5, 1, 1.5, 2, 3, 4, 6
others          the code less 8, looked up
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from jaxllm.pallas_kernels.linear.weight_type import FP4, INT4, UINT4

_FP4_LEVELS, _LEVELS = np.array([*range(8), *range(0, -8, -1)], np.int8), np.arange(-8, 8, dtype=np.int8)


def levels(packed: npt.NDArray[np.uint8], code: tuple[float, ...]) -> npt.NDArray[np.int8]:
    """The integers [..., in] from -8 to 7 that are kept for codes [..., in / 2], two to a byte."""
    codes = np.stack([packed & np.uint8(15), packed >> np.uint8(4)], axis=-1).reshape(*packed.shape[:-1], -1)
    return (_FP4_LEVELS if code == FP4 else _LEVELS)[codes]


def levels_on_device(packed: jax.Array, code: tuple[float, ...]) -> jax.Array:
    """As above on a device, as int4."""
    codes = jnp.stack([packed & np.uint8(15), packed >> np.uint8(4)], axis=-1).reshape(*packed.shape[:-1], -1)
    return jnp.asarray(_FP4_LEVELS if code == FP4 else _LEVELS)[codes].astype(jnp.int4)


def code_bias(code: tuple[float, ...] | None) -> float:
    """The offset missing in each number that `decode` makes, and is added scale by scale."""
    return 8.0 if code == UINT4 else 0.0


def decode(kept: jax.Array, code: tuple[float, ...], dtype: jnp.dtype) -> jax.Array:
    """The numbers of integers that are kept, less `code_bias`."""
    level = kept.astype(dtype)
    if code in (INT4, UINT4):
        return level
    if code == FP4:
        # Twice the number is 4 k - clip(k, 4) - 2 clip(k, 6): 1, 2, 3, 4, 6, 8, 12.
        return 2 * level - 0.5 * jnp.clip(level, -4, 4) - jnp.clip(level, -6, 6)
    out = jnp.full(level.shape, code[0], dtype)
    for number, value in enumerate(code[1:], 1):
        out = jnp.where(level == number - 8, jnp.asarray(value, dtype), out)
    return out
