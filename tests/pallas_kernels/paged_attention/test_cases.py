"""The cases themselves: what tests, tuning and benchmarks of every backend rest on."""

import jax
import numpy as np
import pytest

from jaxllm.pallas_kernels.paged_attention.cases import (
    BENCHMARK_CASES,
    CASES,
    LONG_CASES,
    Case,
    abstract_inputs,
    make_inputs,
    minimum_bytes,
    tolerance,
)

ALL = (*CASES, *LONG_CASES, *BENCHMARK_CASES)


def test_names_are_unique() -> None:
    assert len({case.name for case in ALL}) == len(ALL)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_shapes_without_memory_are_those_of_the_arrays(case: Case) -> None:
    shapes = [
        jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), make(case)) for make in (make_inputs, abstract_inputs)
    ]
    assert shapes[0] == shapes[1]


def test_everything_is_covered() -> None:
    assert {64, 80, 96, 128, 256} <= {case.head_size for case in CASES}
    assert {16, 32, 64, 128, 256} <= {case.page_size for case in CASES}
    assert {1, 2, 3, 5, 7, 8, 16} <= {case.num_heads // case.num_kv_heads for case in CASES}
    types = {(case.dtype, case.cache_dtype.name) for case in CASES}
    assert {("float32", name) for name in ("float32", "bfloat16", "float8_e4m3fn", "int8")} <= types
    assert {("bfloat16", name) for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "int8")} <= types
    assert all(tolerance(case) > 0 for case in ALL)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_batches_are_as_implementations_expect(case: Case) -> None:
    """Decodes first, every page in one row only but for those of the prefix, all of the cache finite."""
    inputs = make_inputs(case)
    batch = jax.tree.map(np.asarray, inputs.batch)
    starts = batch.query_start
    assert starts[0] == 0
    assert (np.diff(starts)[: batch.num_decodes] == 1).all()
    assert not (np.diff(starts)[batch.num_decodes :] == 1).any()
    assert starts[-1] == case.num_tokens == batch.num_tokens
    held = batch.page_table[batch.page_table > 0]
    again = max(sum(computed >= case.prefix for _, computed in case.rows) - 1, 0) * (case.prefix // case.page_size)
    assert len(set(held)) == len(held) - again
    unseen = sum(case.first_key(computed) // case.page_size for _, computed in case.rows if case.unseen_are_null)
    assert len(held) == sum(case.row_pages) - unseen
    assert (unseen > 0) == case.unseen_are_null
    assert np.isfinite(np.asarray(inputs.kv_cache).astype(np.float32)).all()


@pytest.mark.parametrize(
    ("case", "pages", "token_bytes"),
    [
        # 4 query heads and 2 KV heads of 64: a token's queries and results are 2048 bytes, its keys and values 1024.
        pytest.param(Case("", ((1, 17),)), 2, 2048 + 2 * 1024, id="decode"),
        pytest.param(Case("", ((1, 16),)), 1, 2048 + 2 * 1024, id="new_page"),
        pytest.param(Case("", ((1, 40),), window=9), 1, 2048 + 2 * 1024, id="window"),
        pytest.param(Case("", ((1, 40),), window=10), 2, 2048 + 2 * 1024, id="window_over_an_edge"),
        pytest.param(Case("", ((1, 40),), window=1), 0, 2048 + 2 * 1024, id="window_of_itself"),
        pytest.param(Case("", ((0, 40),)), 0, 0, id="no_query"),
        pytest.param(Case("", ((1, 17),), kv_dtype="int8"), 0.5, 2048 + 1024 + 256, id="int8"),
    ],
)
def test_minimum_bytes(case: Case, pages: float, token_bytes: int) -> None:
    assert minimum_bytes(case) == case.num_tokens * token_bytes + pages * 16 * 1024
