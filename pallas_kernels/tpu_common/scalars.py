"""Arithmetic of the scalar unit, which divides slowly."""

from typing import Any

import jax.numpy as jnp
from jax import lax


def div(value: Any, size: int) -> Any:
    """Quotient of numbers that are not negative: a shift where it can be, since the scalar unit divides slowly."""
    if size & (size - 1) == 0:
        return lax.shift_right_arithmetic(jnp.asarray(value, jnp.int32), jnp.int32(size.bit_length() - 1))
    return lax.div(jnp.asarray(value, jnp.int32), jnp.int32(size))


def cdiv(value: Any, size: int) -> Any:
    """Ceiling of a quotient of numbers that are not negative."""
    return div(value + (size - 1), size)


def rem(value: Any, size: int) -> Any:
    """Remainder of numbers that are not negative."""
    value = jnp.asarray(value, jnp.int32)
    return value & (size - 1) if size & (size - 1) == 0 else lax.rem(value, jnp.int32(size))
