"""The program that turns a crop of an image into rows of the pool.

Axis letters: E rows of the pool, P patches, B bytes of a patch, R rows, D hidden size times the parts of a row.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxllm.executor.compile.program_context import ProgramBody, ProgramContext
from jaxllm.executor.device_state import DeviceState
from jaxllm.models.towers.crop import Crop


def encode_body(context: ProgramContext[DeviceState], size: int) -> ProgramBody:
    """Encodes a crop of at most `size` patches."""
    plan = context.tower
    assert plan is not None

    def encode(
        parameters: Any, pool: jax.Array, patches: jax.Array, places: jax.Array, extent: jax.Array, rows: jax.Array
    ) -> jax.Array:
        """The pool [E, D] with the rows of a crop at `rows` int32 [R], see `ImageTower`; those at -1 are not kept.

        `patches` uint8 [size, B] of `extent` int32 [2] each way are at `places` int32 [size, 2].
        """
        tower = nnx.merge(context.graph, parameters).tower
        assert tower is not None
        encoded = tower(patches, Crop(places, extent))
        outside = jnp.where(rows < 0, pool.shape[0], rows)
        return pool.at[outside].set(encoded.astype(pool.dtype), mode="drop")

    inputs = (
        context.host((size, plan.patch_bytes), np.uint8),
        context.host((size, 2)),
        context.host((2,)),
        context.host((plan.rows_of(size),)),
    )
    return ProgramBody(encode, inputs)


def encode_sizes(context: ProgramContext[Any]) -> tuple[int, ...]:
    """The sizes of crops, in patches, that have a program each, the smallest first."""
    return () if context.tower is None else context.tower.sizes
