"""Every implementation of the gated delta rule gives what one token after the other gives."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from jaxllm.pallas_kernels.gated_delta.cases import CASES, Case, make_inputs
from tests.pallas_kernels.recurrence.implementations import by_reference, by_xla, check


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cases(case: Case) -> None:
    check(make_inputs(case), sum(case.rows.lengths), 1e-2 if case.dtype == "bfloat16" else 1e-5)


def test_a_step_of_one_token_may_be_part_of_a_prompt() -> None:
    """The token is not counted as a decode then: chunks may end anywhere."""
    inputs = make_inputs(next(case for case in CASES if case.rows.lengths == (1,)))
    batch = replace(inputs.states.batch, num_decodes=jnp.int32(0))
    prompt = inputs._replace(states=inputs.states._replace(batch=batch))
    for found, expected in zip(by_xla(prompt), by_reference(inputs), strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-5, rtol=1e-5)
