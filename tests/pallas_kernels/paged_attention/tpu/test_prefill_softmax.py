"""The prefill kernel where the cases do not reach: scores far from 0, and whole blocks on the diagonal."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jaxllm.pallas_kernels.paged_attention.cases import Case
from jaxllm.pallas_kernels.paged_attention.tpu.common import Blocks
from tests.pallas_kernels.paged_attention.oracle import cached_inputs, check, run_function
from tests.pallas_kernels.paged_attention.tpu.interpreter import interpret
from tests.thinned import thinned

_ONE_HEAD: dict[str, Any] = {"num_heads": 2, "num_kv_heads": 1}
_HALVES = Blocks(keys=256, chunk=256, slots=2, queries=256)


@pytest.mark.slow
@pytest.mark.parametrize("factor", thinned([400], [12, 60]))
def test_weights_that_leave_the_range_are_mended(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores up to some 40, 200 and 1300: sums are scaled, or weights of several chunks overflow and vanish."""
    case = Case("large_scores", ((1, 300), (100, 250), (64, 0)), **_ONE_HEAD)
    inputs = cached_inputs(case)
    inputs = replace(inputs, q=inputs.q * factor)
    got, _ = interpret(inputs, monkeypatch)
    expected, _ = run_function("reference")(inputs)
    tokens = case.num_tokens
    np.testing.assert_allclose(np.asarray(got)[:tokens], np.asarray(expected)[:tokens], rtol=0, atol=2e-6 * factor)


@pytest.mark.slow
def test_slopes_over_a_long_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first chunks are so far away that nothing of them is left, and each outdoes the one before."""
    case = Case("long_alibi", ((1, 900), (40, 860)), alibi=True, **_ONE_HEAD)
    check(case, *interpret(cached_inputs(case), monkeypatch))


@pytest.mark.slow
@pytest.mark.parametrize(
    "extra", thinned([{"window": 270}], [{"alibi": True, "sinks": True}, {}, {"window": 100}]), ids=str
)
def test_blocks_on_the_diagonal(extra: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """From the start of a chunk, in the midst of one, and shorter than a block."""
    rows = ((300, 0), (280, 256), (270, 100), (20, 256))
    case = Case("diagonal", rows, head_size=128, dtype="bfloat16", **extra, **_ONE_HEAD)
    check(case, *interpret(cached_inputs(case), monkeypatch, prefill=_HALVES))
