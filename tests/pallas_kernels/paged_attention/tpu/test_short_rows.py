"""Rows of a few tokens in the decode kernel, interpreted, against the oracle: decodes with drafts."""

from dataclasses import replace

import numpy as np
import pytest

from jaxllm.pallas_kernels.paged_attention.cases import CASES, Case, make_inputs
from jaxllm.pallas_kernels.tpu_common.batch import tpu_prepare
from tests.pallas_kernels.paged_attention.oracle import cached_inputs, check
from tests.pallas_kernels.paged_attention.tpu.interpreter import interpret
from tests.thinned import EVERY_CASE, thinned

_ROWS = next(case for case in CASES if case.name == "short").rows

SHORT: tuple[Case, ...] = (
    *(case for case in CASES if case.most_short > 1),
    Case("short_window_traced", _ROWS, window=3, traced=True, most_short=4),
    Case("short_group_3", _ROWS, num_heads=6, num_kv_heads=2, alibi=True, sinks=True, most_short=4),
    Case("short_int8", _ROWS, kv_dtype="int8", k_scale=2**-5, v_scale=2**-4, head_size=128, most_short=4),
    Case("short_chunks", _ROWS, chunk=64, dtype="bfloat16", most_short=4),
    Case("short_many", tuple((1 + i % 4, 7 * i % 41) for i in range(37)), head_size=256, most_short=4),
)
FAST = ("short_window", "short_every_score", "short_spans")
FEW = (*FAST, "short_int8", "short_chunks")


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=[] if case.name in FAST else pytest.mark.slow)
        for case in SHORT
        if EVERY_CASE or case.name in FEW
    ],
)
def test_matches_numpy(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    check(case, *interpret(cached_inputs(case), monkeypatch))


def test_a_row_with_a_span_is_not_short() -> None:
    """The decode kernel has tokens see none that is later."""
    case = next(case for case in CASES if case.name == "short_spans")
    np.testing.assert_array_equal(tpu_prepare(make_inputs(case).batch, 4).counts, [2, 2])


@pytest.mark.slow
@pytest.mark.parametrize("name", thinned(["empty_rows"], ["mixed", "empty", "one_decode"]))
def test_other_batches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = replace(next(case for case in CASES if case.name == name), most_short=4)
    check(case, *interpret(cached_inputs(case), monkeypatch))


def test_which_rows_are_short() -> None:
    batch = make_inputs(SHORT[0]).batch
    short = tpu_prepare(batch, 4)
    np.testing.assert_array_equal(short.counts, [9, 2])
    np.testing.assert_array_equal(short.order[:2], [9, 10])
    np.testing.assert_array_equal(tpu_prepare(batch).counts, [3, 8])
