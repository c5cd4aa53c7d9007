"""The choice of a drafter's guess."""

import jax
import jax.numpy as jnp


def likeliest(logits: jax.Array) -> jax.Array:
    """The token with the greatest logit of each row, int32 [R], from [R, V]."""
    return logits.argmax(axis=1).astype(jnp.int32)
