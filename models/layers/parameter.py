"""Parameters before they have values."""

from collections.abc import Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
from flax import nnx


def placeholder(shape: Sequence[int], dtype: jnp.dtype) -> jax.Array:
    """A shape and a type that stand where an array will be."""
    make = cast(Any, jax.ShapeDtypeStruct)
    return cast(jax.Array, make(tuple(shape), dtype))


def parameter(shape: Sequence[int], dtype: jnp.dtype) -> nnx.Param[jax.Array]:
    """A parameter without memory: models are built from placeholders, and loading gives them arrays."""
    return nnx.Param(placeholder(shape, dtype))
