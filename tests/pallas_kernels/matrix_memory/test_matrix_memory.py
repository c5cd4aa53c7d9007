"""Every implementation of the matrix memory gives what one token after the other gives."""

import pytest

from jaxllm.pallas_kernels.matrix_memory.cases import CASES, Case, make_inputs
from tests.pallas_kernels.recurrence.implementations import check


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cases(case: Case) -> None:
    check(make_inputs(case), sum(case.rows.lengths), 2e-5)
