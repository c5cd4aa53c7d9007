"""Every implementation of products against NumPy in float64, on every case."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxllm.pallas_kernels.linear.api import LAYOUTS
from jaxllm.pallas_kernels.linear.cases import CASES, Case, Inputs, make_inputs, tolerance
from jaxllm.pallas_kernels.linear.weight import Weight


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
    return (out if fused.residual is None else out + np.asarray(fused.residual))[: case.rows]


@pytest.mark.parametrize("implementation", ["reference", *LAYOUTS])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_matches_numpy(case: Case, implementation: str) -> None:
    inputs = make_inputs(case)
    found = jax.jit(lambda inputs: inputs.call(implementation))(inputs)
    np.testing.assert_allclose(found, expected(inputs), rtol=0, atol=tolerance(case))


@pytest.mark.parametrize("implementation", LAYOUTS)
def test_rows_of_a_matrix(implementation: str) -> None:
    matrix = make_inputs(Case("table", 1, 16, 21)).matrix
    layout = LAYOUTS[implementation]((21, 16))
    found = layout.rows(Weight(layout, layout.pack(matrix)), jnp.array([0, 20, 17, 99]))
    np.testing.assert_array_equal(found, matrix[np.array([0, 20, 17, 20])])
