"""Every implementation of state spaces gives what one token after the other gives."""

import jax
import numpy as np
import pytest

from jaxllm.pallas_kernels.state_space.cases import CASES, Case, make_inputs
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
    tolerance = 2e-5
    np.testing.assert_allclose(found, expected, atol=tolerance, rtol=1e-5)
    np.testing.assert_allclose(states, expected_states, atol=2e-5, rtol=1e-5)
