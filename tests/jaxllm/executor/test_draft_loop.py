"""The loops of the device's drafter: what they compute, they compute in their rounds."""

import jax
import jax.numpy as jnp
from jax import lax

from jaxllm.executor.draft_loop import _only_in


def test_a_loop_without_rounds_multiplies_nothing() -> None:
    """XLA moves products out of loops if they are the same in all rounds: a drafter that rests would cost the same."""

    def run(rounds: jax.Array, x: jax.Array, w: jax.Array) -> jax.Array:
        def body(index: jax.Array, total: jax.Array) -> jax.Array:
            own = _only_in(index, x)
            return total + own @ w

        return lax.fori_loop(0, rounds, body, jnp.zeros((8, 64)))

    compiled = jax.jit(run).lower(jnp.int32(0), jnp.ones((8, 32)), jnp.ones((32, 64))).compile()
    text = compiled.as_text()
    assert text is not None
    before, entry = text.split("\nENTRY ", 1)
    assert " dot(" in before or "dot_" in before
    assert " dot(" not in entry
    assert float(compiled(jnp.int32(2), jnp.ones((8, 32)), jnp.ones((32, 64))).sum()) == 2 * 32 * 8 * 64
