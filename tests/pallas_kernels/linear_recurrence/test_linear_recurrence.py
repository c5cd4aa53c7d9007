"""Every implementation of the linear recurrence gives what one token after the other gives."""

import pytest

from jaxllm.pallas_kernels.linear_recurrence.cases import make_inputs
from jaxllm.pallas_kernels.recurrence.cases import CHANNELS, ChannelsCase
from tests.pallas_kernels.recurrence.implementations import check


@pytest.mark.parametrize("case", CHANNELS, ids=lambda case: case.name)
def test_cases(case: ChannelsCase) -> None:
    check(make_inputs(case), sum(case.rows.lengths), 2e-5)
