"""Every implementation of the gated delta rule gives what one token after the other gives."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxllm.pallas_kernels.gated_delta.cases import CASES, Case, make_inputs
from tests.quick import QUICK

# Compiling takes nearly all the time of these tests.
_reference, _xla = (
    jax.jit(lambda inputs, name=name: inputs.call(name), compiler_options=QUICK) for name in ("reference", "xla")
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cases(case: Case) -> None:
    inputs = make_inputs(case)
    (expected, expected_states), (found, states) = _reference(inputs), _xla(inputs)
    assert found.dtype == expected.dtype
    count = sum(case.rows.lengths)
    expected, found = (each[:count].astype(np.float32) for each in (expected, found))
    tolerance = 1e-2 if case.dtype == "bfloat16" else 1e-5
    np.testing.assert_allclose(found, expected, atol=tolerance, rtol=1e-5)
    np.testing.assert_allclose(states, expected_states, atol=2e-5, rtol=1e-5)


def test_a_step_of_one_token_may_be_part_of_a_prompt() -> None:
    """The token is not counted as a decode then: chunks may end anywhere."""
    inputs = make_inputs(next(case for case in CASES if case.rows.lengths == (1,)))
    batch = replace(inputs.states.batch, num_decodes=jnp.int32(0))
    prompt = inputs._replace(states=inputs.states._replace(batch=batch))
    for found, expected in zip(_xla(prompt), _reference(inputs), strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-5, rtol=1e-5)
