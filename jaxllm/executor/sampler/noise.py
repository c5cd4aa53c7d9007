"""The random numbers of a row, from its seed and the index of the token alone."""

import jax
import jax.numpy as jnp
from jax import Array


def uniforms(seed: Array, step: Array) -> Array:
    """Two numbers in [0, 1) per row from `seed` and `step` (int32 [R]) alone: float32 [R, 2].

    Threefry (Salmon et al., SC 2011) with (seed, step) as its key: no state, so a row's numbers do not depend on when
    or alongside what it runs.
    """
    pairs = jnp.stack([seed, step], axis=1).astype(jnp.uint32)
    keys = jax.random.wrap_key_data(pairs, impl="threefry2x32")
    bits: Array = jax.vmap(lambda key: jax.random.bits(key, (2,), jnp.uint32))(keys)
    numbers: Array = (bits >> 8).astype(jnp.float32) * 2.0**-24
    return numbers
