"""A gated feed-forward block whose tokens are split over devices: products are computed while tokens travel.

A product whose input is gathered, or whose sum is scattered, waits for the links. Here the tokens of each device go
around the ring, half of them in each direction. Every device multiplies what it has just received by its part of both
matrices, adds the sum that came with it, and sends both on: the collective matmul of Wang et al. (ASPLOS 2023), for two
products at once, so that neither the gathered input nor what lies between the products is ever whole anywhere.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh

from jaxllm.models.sharding import MODEL, over_model, partition

Block = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
"""The product of rows [T, D] and a device's parts of the two matrices: its part of a sum [T, D]."""

FEWEST_ROWS = 512
"""Minimum rows per device. With fewer, reading the matrices for every part of the tokens costs more than is hidden."""


def fits_ring(tokens: int, devices: int) -> bool:
    """Whether so many tokens, which are split over devices, should travel."""
    return tokens >= FEWEST_ROWS * devices and tokens % (2 * devices) == 0


def run_ring_mlp(block: Block, x: jax.Array, wide: jax.Array, narrow: jax.Array, mesh: Mesh) -> jax.Array:
    """The sum over devices of `block(x, wide, narrow)`, each with its parts of the matrices.

    Split over the devices: `x` [T, D] and the result by tokens, `wide` [F, D] and `narrow` [D, F] by F.
    """
    rows = partition("tokens", "hidden")
    specs = (rows, partition("mlp", "hidden"), partition("hidden", "mlp"))
    body = partial(_ring_rounds, block, int(mesh.shape[MODEL]))
    summed: jax.Array = over_model(body, mesh, specs, rows)(x, wide, narrow)
    return summed


def _ring_rounds(block: Block, devices: int, x: jax.Array, wide: jax.Array, narrow: jax.Array) -> jax.Array:
    """In each round both halves are one product: the compiler then sends both at the same time."""

    def send(both: jax.Array) -> jax.Array:
        """The halves to the next device and to the one before."""
        halves = jnp.split(both, 2)
        pairs = ([(here, (here + step) % devices) for here in range(devices)] for step in (1, -1))
        return jnp.concatenate([lax.ppermute(half, MODEL, pair) for half, pair in zip(halves, pairs, strict=True)])

    first, second = jnp.split(x, 2)
    travelling, summed = send(x), None
    # A device's own rows need not travel: their products fill the first and the last wait.
    own_first = block(first, wide, narrow)
    for left in reversed(range(devices - 1)):
        part = block(travelling, wide, narrow)
        if left:
            travelling = send(travelling)
        summed = send(part if summed is None else summed + part)
    assert summed is not None
    return summed + jnp.concatenate([own_first, block(second, wide, narrow)])
