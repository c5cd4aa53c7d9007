"""The TPU kernels, interpreted, against the oracle on every case."""

import pytest

from jaxllm.pallas_kernels.paged_attention.cases import CASES, Case
from tests.pallas_kernels.paged_attention.oracle import cached_inputs, check
from tests.pallas_kernels.paged_attention.tpu.interpreter import interpret

FAST = ("decodes", "every_score", "int8_traced")
"""The cases that run with every test run; the others are slow tests."""


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name, marks=[pytest.mark.slow] * (case.name not in FAST)) for case in CASES],
)
def test_matches_numpy(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    check(case, *interpret(cached_inputs(case), monkeypatch))
