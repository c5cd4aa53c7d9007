"""Rows of a few tokens in the decode kernel, interpreted, against the oracle: decodes with drafts."""

from dataclasses import replace

import numpy as np
import pytest

from jaxllm.pallas_kernels.paged_attention.cases import CASES, Case, make_inputs
from jaxllm.pallas_kernels.tpu_common.batch import tpu_prepare
from tests.pallas_kernels.paged_attention.oracle import cached_inputs, check
from tests.pallas_kernels.paged_attention.tpu.interpreter import interpret

_ROWS = ((1, 5), (4, 33), (1, 0), (3, 126), (4, 254), (2, 15), (4, 0), (2, 511), (1, 256), (70, 3), (2, 20))
"""Tokens on both sides of the ends of pages, of chunks and of blocks; those after the long row are not short."""

SHORT: tuple[Case, ...] = (
    Case("short", _ROWS, padding_tokens=3, padding_rows=2),
    Case("short_window", _ROWS, window=24, dtype="bfloat16", unseen_are_null=True),
    Case("short_window_traced", _ROWS, window=3, traced=True),
    Case("short_every_score", _ROWS, window=130, soft_cap=5.0, sinks=True, alibi=True, dtype="bfloat16"),
    Case("short_group_3", _ROWS, num_heads=6, num_kv_heads=2, alibi=True, sinks=True),
    Case("short_int8", _ROWS, kv_dtype="int8", k_scale=2**-5, v_scale=2**-4, head_size=128),
    Case("short_chunks", _ROWS, chunk=64, dtype="bfloat16"),
    Case("short_many", tuple((1 + i % 4, 7 * i % 41) for i in range(37)), head_size=256),
)
FAST = ("short_window", "short_every_score")


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name, marks=[] if case.name in FAST else pytest.mark.slow) for case in SHORT],
)
def test_matches_numpy(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    check(case, *interpret(cached_inputs(case), monkeypatch, most_short=4))


SPANS = Case("short_spans", ((1, 5), (4, 33), (3, 12), (20, 0)), spans=((2, 12, 15), (3, 2, 19)))


def test_a_row_with_a_span_is_not_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The decode kernel has tokens see none that is later."""
    np.testing.assert_array_equal(tpu_prepare(make_inputs(SPANS).batch, 4).counts, [2, 2])
    check(SPANS, *interpret(cached_inputs(SPANS), monkeypatch, most_short=4))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["empty_rows", "mixed", "empty", "one_decode"])
def test_other_batches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(case for case in CASES if case.name == name)
    check(case, *interpret(cached_inputs(case), monkeypatch, most_short=4))


def test_which_rows_are_short() -> None:
    case = replace(SHORT[0], name="rows")
    batch = make_inputs(case).batch
    short = tpu_prepare(batch, 4)
    np.testing.assert_array_equal(short.counts, [9, 2])
    np.testing.assert_array_equal(short.order[:2], [9, 10])
    np.testing.assert_array_equal(tpu_prepare(batch).counts, [3, 8])
