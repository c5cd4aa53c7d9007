"""Every implementation of the weighted mean gives what one token after the other gives, and numpy in float64."""

import numpy as np
import pytest

from jaxllm.pallas_kernels.recurrence.cases import CHANNELS, PROMPT, ChannelsCase
from jaxllm.pallas_kernels.weighted_mean.cases import make_inputs
from tests.pallas_kernels.recurrence.implementations import check


@pytest.mark.parametrize("case", CHANNELS, ids=lambda case: case.name)
def test_cases(case: ChannelsCase) -> None:
    check(make_inputs(case), sum(case.rows.lengths), 2e-5)


@pytest.mark.parametrize("more", [0.0, 100.0, -100.0])
def test_the_formula(more: float) -> None:
    """Also with keys whose exponentials are beyond what a number holds: only their differences count."""
    inputs = make_inputs(ChannelsCase(PROMPT))
    (length,) = PROMPT.lengths
    inputs = inputs._replace(tokens=inputs.tokens._replace(key=inputs.tokens.key + np.float32(more)))
    key, value, decay, bonus = (np.asarray(each, np.float64) for each in inputs.tokens)
    out, _ = inputs.call("xla")
    for token in range(length):
        exponents = key[: token + 1] + decay * (token - 1 - np.arange(token + 1))[:, None]
        exponents[token] = key[token] + bonus
        weights = np.exp(exponents - exponents.max(axis=0))
        wanted = (weights * value[: token + 1]).sum(axis=0) / weights.sum(axis=0)
        np.testing.assert_allclose(np.asarray(out[token]), wanted, atol=1e-4)
