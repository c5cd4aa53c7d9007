"""Every implementation of products with quantised matrices against NumPy in float64, on every case."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxllm.pallas_kernels.linear import linear
from jaxllm.pallas_kernels.linear.quantized_cases import CASES, QuantizedCase, make_inputs, pack_matrix, tolerance
from jaxllm.pallas_kernels.linear.quantized_layouts import QUANTIZED_LAYOUTS, choose_quantized_layout
from tests.thinned import EVERY_CASE


def cases_of(implementation: str) -> list[QuantizedCase]:
    """Those that it reads."""
    layout = QUANTIZED_LAYOUTS[implementation]
    return [case for case in CASES if layout.reads((case.out_size, case.in_size), case.kind)]


ALIKE = (
    "int8_one_row", "int8_many_rows", "int8_deep", "int8_norm", "int8_gated", "int8_residual", "int8_groups",
    "int8_offsets", "int4_many_rows", "int4_fused", "uint4_order", "nvfp4", "int8_per_token",
    "int8_per_token_many_rows", "int4_per_token", "int4_per_token_many_rows",
)  # fmt: skip
"""Cases that differ from others in what only the kernel has paths for: XLA has them in `scripts/test --all`."""


@pytest.mark.parametrize(
    ("implementation", "case"),
    [
        (name, case)
        for name in QUANTIZED_LAYOUTS
        if name != "tpu"
        for case in cases_of(name)
        if EVERY_CASE or name == "cpu" or case.name not in ALIKE
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_matches_numpy(implementation: str, case: QuantizedCase) -> None:
    inputs = make_inputs(case)
    np.testing.assert_allclose(inputs.call(implementation), inputs.expected(), rtol=0, atol=tolerance(inputs))


@pytest.mark.parametrize("implementation", QUANTIZED_LAYOUTS)
def test_rows_of_a_matrix(implementation: str) -> None:
    for case in cases_of(implementation)[::5]:
        matrix = make_inputs(case).matrix
        weight = pack_matrix(QUANTIZED_LAYOUTS[implementation](matrix.shape, case.kind), matrix)
        index = np.array([0, case.out_size - 1, 3, 999])
        found = weight.layout.rows(weight, jnp.asarray(index))
        wanted = matrix.dequantized(np.float32)[np.minimum(index, case.out_size - 1)]
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_activations(dtype: str) -> None:
    """Quantised numbers are exact in both, so that only the result is rounded."""
    inputs = make_inputs(next(case for case in CASES if case.name == "int8_deep"))
    weight = pack_matrix(choose_quantized_layout(inputs.matrix.shape, inputs.case.kind), inputs.matrix)
    x = jnp.asarray(inputs.x, dtype)
    found = jax.jit(lambda x: linear(x, weight, out_dtype=dtype))(x)
    assert found.dtype == dtype
    wanted = np.asarray(x, np.float64) @ inputs.matrix.dequantized().T
    np.testing.assert_allclose(np.asarray(found, np.float64), wanted, rtol=2 * float(jnp.finfo(dtype).eps), atol=0.05)
