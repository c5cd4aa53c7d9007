"""Every implementation of products against NumPy in float64, on every case."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxllm.pallas_kernels.cpu_common.processor import host_processor
from jaxllm.pallas_kernels.linear.api import LAYOUTS
from jaxllm.pallas_kernels.linear.cases import CASES, Case, Inputs, make_inputs, tolerance
from jaxllm.pallas_kernels.linear.weight import Weight

ON_THIS_PROCESSOR = pytest.mark.skipif(
    not host_processor().multiplies_bfloat16, reason="the processor has no AVX512-BF16"
)


def expected(inputs: Inputs) -> np.ndarray:
    """The product [rows, out] in float64."""
    case, fused = inputs.case, inputs.fused
    x, matrix = (np.asarray(array).astype(np.float64) for array in (inputs.x, inputs.matrix))
    if fused.norm is not None:
        scale = np.sqrt((x**2).mean(axis=1, keepdims=True) + fused.norm.epsilon)
        x = x / scale * np.asarray(fused.norm.weight)
    if fused.is_gated:
        gate, up = np.split(x, 2, axis=1)
        x = gate / (1 + np.exp(-gate)) * up
    out = x @ (matrix if case.layers is None else matrix[-1]).T
    return (out if fused.residual is None else out + np.asarray(fused.residual).astype(np.float64))[: case.rows]


@pytest.mark.parametrize(
    ("implementation", "case"),
    [
        pytest.param(name, case, marks=ON_THIS_PROCESSOR if name == "cpu_pairs" else ())
        for name in ("reference", *LAYOUTS)
        for case in CASES
        # A kernel for pairs would round rows of float32.
        if name != "cpu_pairs" or case.row_dtype == "bfloat16"
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_matches_numpy(implementation: str, case: Case) -> None:
    inputs = make_inputs(case)
    found = jax.jit(lambda inputs: inputs.call(implementation))(inputs)
    np.testing.assert_allclose(found, expected(inputs), rtol=0, atol=tolerance(case))


@pytest.mark.parametrize("implementation", LAYOUTS)
def test_rows_of_a_matrix(implementation: str) -> None:
    dtype = "bfloat16" if implementation == "cpu_pairs" else "float32"
    matrix = make_inputs(Case("table", 1, 16, 21, dtype=dtype)).matrix
    layout = LAYOUTS[implementation]((21, 16), dtype)
    found = layout.rows(Weight(layout, layout.pack(matrix)), jnp.array([0, 20, 17, 99]))
    np.testing.assert_array_equal(found, matrix[np.array([0, 20, 17, 20])])
