"""Every implementation of grouped products against NumPy in float64, on every case."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxllm.pallas_kernels.cpu_common.processor import host_processor
from jaxllm.pallas_kernels.grouped_matmul.api import IMPLEMENTATIONS, choose_grouped_layout
from jaxllm.pallas_kernels.grouped_matmul.cases import CASES, Case, Inputs, make_inputs, tolerance
from jaxllm.pallas_kernels.linear import Weight
from tests.thinned import EVERY_CASE

ON_THIS_PROCESSOR = pytest.mark.skipif(
    not host_processor().multiplies_bfloat16, reason="the processor has no AVX512-BF16"
)


def expected(inputs: Inputs) -> np.ndarray:
    """The products [rows, out] in float64."""
    case = inputs.case
    x, matrices = (np.asarray(array).astype(np.float64) for array in (inputs.x, inputs.matrices))
    matrices = matrices if case.layers is None else matrices[-1]
    starts = np.cumsum((0, *case.sizes))
    own = [
        x[start : start + size] @ matrix.T for start, size, matrix in zip(starts, case.sizes, matrices, strict=False)
    ]
    return np.concatenate(own)


@pytest.mark.parametrize(
    ("implementation", "case"),
    [
        pytest.param(name, case, marks=ON_THIS_PROCESSOR if name == "cpu_pairs" else ())
        for name in ("reference", *IMPLEMENTATIONS)
        for case in CASES
        # A kernel for pairs would round rows of float32.
        if name not in ("tpu", "cpu_pairs") or (name == "cpu_pairs" and case.row_dtype == "bfloat16")
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_matches_numpy(implementation: str, case: Case) -> None:
    inputs = make_inputs(case)
    found = jax.jit(lambda inputs: inputs.call(implementation))(inputs)
    np.testing.assert_allclose(found, expected(inputs), rtol=0, atol=tolerance(case))


_packed = jax.jit(IMPLEMENTATIONS["cpu"])


FORMS = [("float32", False), ("bfloat16", False), pytest.param("bfloat16", True, marks=ON_THIS_PROCESSOR)]


@pytest.mark.parametrize(("dtype", "multiplies_pairs"), FORMS)
@settings(max_examples=25 if EVERY_CASE else 12)
@given(sizes=st.lists(st.integers(0, 9), min_size=5, max_size=5), row=st.integers(0, 44))
def test_a_row_depends_on_nothing_but_itself_and_its_matrix(
    dtype: str, multiplies_pairs: bool, sizes: list[int], row: int
) -> None:
    """The same bits whatever rows are alongside it; and padding is zero."""
    rng = np.random.default_rng(0)
    layout = choose_grouped_layout(5, (64, 32), dtype, native=True, multiplies_pairs=multiplies_pairs)
    assert layout.is_packed
    weight = Weight(layout, layout.pack(jnp.asarray(rng.standard_normal(layout.shape, np.float32), dtype)))
    x = rng.standard_normal((45, 32), np.float32)
    found = np.asarray(_packed(x, weight, jnp.array(sizes, jnp.int32)))
    assert not found[sum(sizes) :].any()
    if row >= sum(sizes):
        return
    group = int(np.searchsorted(np.cumsum(sizes), row, side="right"))
    alone = np.concatenate([x[row : row + 1], np.zeros((44, 32), np.float32)])
    np.testing.assert_array_equal(_packed(alone, weight, jnp.eye(5, dtype=jnp.int32)[group])[0], found[row])


def test_layouts_of_matrices_whose_blocks_would_be_of_two_groups() -> None:
    assert not choose_grouped_layout(4, (24, 32), "float32", native=True).is_packed
    assert not choose_grouped_layout(4, (32, 24), "float32", native=True).is_packed
    assert not choose_grouped_layout(4, (32, 32), "float32", native=False).is_packed
