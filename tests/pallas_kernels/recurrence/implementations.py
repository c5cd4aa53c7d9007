"""The implementations of recurrences without kernels, compiled quickly: the reference, and XLA."""

from typing import Any

import jax
import numpy as np

from tests.quick import QUICK

# Compiling takes nearly all the time of these tests.
by_reference, by_xla = (
    jax.jit(lambda inputs, name=name: inputs.call(name), compiler_options=QUICK) for name in ("reference", "xla")
)


def check(inputs: Any, num_tokens: int, tolerance: float) -> None:
    """Compare XLA's outputs of the first tokens, and its states, with the reference's; `inputs` are of an operation."""
    (expected, expected_states), (found, states) = by_reference(inputs), by_xla(inputs)
    assert found.dtype == expected.dtype
    expected, found = (each[:num_tokens].astype(np.float32) for each in (expected, found))
    np.testing.assert_allclose(found, expected, atol=tolerance, rtol=1e-5)
    np.testing.assert_allclose(states, expected_states, atol=2e-5, rtol=1e-5)
