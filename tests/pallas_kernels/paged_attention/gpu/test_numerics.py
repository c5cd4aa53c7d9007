"""The GPU kernel, interpreted, against the oracle on every case."""

import pytest

from jaxllm.pallas_kernels.paged_attention.cases import CASES, Case
from tests.pallas_kernels.paged_attention.gpu.interpreter import bfloat16, interpret
from tests.pallas_kernels.paged_attention.oracle import cached_inputs, check

_SMALL = Case("small", ((1, 70), (1, 0), (9, 60)), num_heads=2, num_kv_heads=1, dtype="bfloat16", padding_rows=1)

SMALL = (_SMALL,)
"""Interpreted with every test run; all other cases are slow tests."""


@pytest.mark.parametrize(
    "case",
    [
        *(pytest.param(case, id=case.name) for case in SMALL),
        *(pytest.param(bfloat16(case), id=case.name, marks=pytest.mark.slow) for case in CASES),
    ],
)
def test_matches_numpy(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    check(case, *interpret(cached_inputs(case), monkeypatch))
