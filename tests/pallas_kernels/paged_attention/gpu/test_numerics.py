"""The GPU kernel, interpreted, against the oracle, see `covering`."""

from itertools import product
from pathlib import Path

import pytest

from benchmarks.gpu_tune import TILES
from jaxllm.pallas_kernels.measured import store_measured
from jaxllm.pallas_kernels.paged_attention.cases import CASES, Case
from jaxllm.pallas_kernels.paged_attention.gpu import batch
from tests.pallas_kernels.paged_attention.covering import READ_BY_GPUS, joined
from tests.pallas_kernels.paged_attention.gpu.interpreter import bfloat16, interpret
from tests.pallas_kernels.paged_attention.oracle import cached_inputs, check
from tests.thinned import EVERY_CASE, thinned

_SMALL = Case(
    "small",
    ((1, 70), (1, 0), (3, 126), (2, 30), (9, 60)),
    num_heads=2,
    num_kv_heads=1,
    window=40,
    dtype="bfloat16",
    padding_rows=1,
    most_short=3,
)

EVERY_PAIR = tuple(product(TILES["decode"], TILES["prefill"]))
PAIRS = ((32, 64),)
"""Of those that other tests do not have; the kernels do not share them."""

SMALL = (_SMALL,)
"""Interpreted with every test run; the others that run are slow tests."""
OTHERS = joined(tuple(bfloat16(case) for case in READ_BY_GPUS if EVERY_CASE or case.name != "many_decodes"), "bfloat16")
# Many rows take many seconds in this interpreter; those of the other kernels have them in CI.


@pytest.mark.parametrize(
    "case",
    [
        *(pytest.param(case, id=case.name) for case in SMALL),
        *(pytest.param(case, id=case.name, marks=pytest.mark.slow) for case in OTHERS),
    ],
)
def test_matches_numpy(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    check(case, *interpret(cached_inputs(case), monkeypatch))


def test_scales_by_token_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(case for case in CASES if case.scale_bytes and not case.spans)
    with pytest.raises(NotImplementedError, match="'gpu' does not support scales per token and head"):
        interpret(cached_inputs(bfloat16(case)), monkeypatch)


def test_spans_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(case for case in CASES if case.spans and not case.scale_bytes)
    with pytest.raises(NotImplementedError, match="tokens that see later ones"):
        interpret(cached_inputs(bfloat16(case)), monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize(("decode", "prefill"), thinned(PAIRS, (pair for pair in EVERY_PAIR if pair not in PAIRS)))
def test_other_tiles(decode: int, prefill: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As `scripts/bench gpu_tune` tries them; they come to the kernel as measured ones do."""
    case = Case("tiles", ((1, 300), (1, 0), (90, 160)), num_heads=2, num_kv_heads=1, head_size=128, dtype="bfloat16")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(batch, "local_gpu_kind", lambda: "a GPU")
    for tile, is_decode in ((decode, True), (prefill, False)):
        key = batch.tile_key(128, "bfloat16", decode=is_decode)
        store_measured("paged_attention", "a GPU", {"key": key, "blocks": {"tile": tile}})
        assert batch.choose_tile(128, "bfloat16", decode=is_decode) == tile
    check(case, *interpret(cached_inputs(case), monkeypatch))
