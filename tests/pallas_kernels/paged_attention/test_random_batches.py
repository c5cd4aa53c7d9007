"""Batches that nobody thought of: the XLA implementation against the reference."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxllm.pallas_kernels.paged_attention.cases import Case, Inputs, make_inputs, tolerance
from tests.pallas_kernels.paged_attention.oracle import run_function
from tests.thinned import EVERY_CASE

TOKENS, ROWS, WIDTH, PAGES = 48, 6, 12, 80

# All batches run as this case, with traced window and scales: one compilation for all.
COMMON = Case(
    "any", (), head_size=8, page_size=4, window=0, traced=True, sinks=True, alibi=True, k_scale=1.0, v_scale=1.0
)
QUANTISED = replace(COMMON, kv_dtype="int8", soft_cap=5.0)


@st.composite
def batches(draw: st.DrawFn) -> tuple[tuple[int, int], ...]:
    """Rows of (new tokens, computed tokens), decodes first, that fit into `TOKENS` and `ROWS`."""
    rows = draw(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 30)), max_size=ROWS))
    while sum(new for new, _ in rows) > TOKENS:
        rows.pop()
    return tuple(sorted(rows, key=lambda row: row[0] != 1))


def padded_inputs(case: Case, common: Case) -> Inputs:
    """`make_inputs` in arrays of the same shapes for all cases."""
    tokens, rows = TOKENS - case.num_tokens, ROWS - len(case.rows)
    inputs = make_inputs(replace(case, padding_tokens=tokens, padding_rows=rows))
    table, cache = inputs.batch.page_table, inputs.kv_cache
    table = jnp.pad(table, ((0, 0), (0, WIDTH - table.shape[1])))
    cache = jnp.pad(cache, ((0, 0), (0, PAGES - cache.shape[1]), (0, 0), (0, 0), (0, 0)))
    return replace(inputs, case=common, batch=replace(inputs.batch, page_table=table), kv_cache=cache)


@pytest.mark.parametrize("implementation", ["xla", "cpu"])
@pytest.mark.parametrize("common", [COMMON, QUANTISED], ids=["float32", "int8"])
@settings(max_examples=25 if EVERY_CASE else 12, derandomize=True)
@given(rows=batches(), window=st.integers(0, 40), seed=st.integers(0, 2**32 - 1))
def test_matches_reference(
    common: Case, implementation: str, rows: tuple[tuple[int, int], ...], window: int, seed: int
) -> None:
    # The kernel for CPUs has whole vectors only.
    common = replace(common, head_size=16, page_size=16) if implementation == "cpu" else common
    scales = {"k_scale": 2**-5, "v_scale": 2**-4} if common.kv_dtype else {}
    case = replace(common, rows=rows, window=window, seed=seed, **scales)  # type: ignore[arg-type]
    inputs = padded_inputs(case, common)
    expected, expected_cache = run_function("reference")(inputs)
    out, cache = run_function(implementation)(inputs)
    assert np.isfinite(out).all()
    tokens = slice(case.num_tokens)
    np.testing.assert_allclose(out[tokens], expected[tokens], rtol=0, atol=2 * tolerance(case))
    np.testing.assert_array_equal(cache[:, 1:], expected_cache[:, 1:])
