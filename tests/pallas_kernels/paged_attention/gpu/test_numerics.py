"""The GPU kernel, interpreted, against the oracle on every case that it takes."""

import pytest

from jaxllm.pallas_kernels.paged_attention.cases import CASES, Case
from tests.pallas_kernels.paged_attention.gpu.interpreter import bfloat16, interpret
from tests.pallas_kernels.paged_attention.oracle import cached_inputs, check

FAST = ("decodes", "every_score", "e5m2")
"""The cases that run with every test run; the others are proofs."""

TAKEN = [bfloat16(case) for case in CASES]


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name, marks=[pytest.mark.proof] * (case.name not in FAST)) for case in TAKEN],
)
def test_matches_numpy(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    check(case, *interpret(cached_inputs(case), monkeypatch))
