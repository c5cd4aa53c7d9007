"""The XLA implementation's own choices, with fixed batches where drawn ones would need luck."""

import numpy as np
import pytest

from jaxllm.pallas_kernels.paged_attention.cases import Case, make_inputs, tolerance
from tests.pallas_kernels.paged_attention.oracle import run_function


@pytest.mark.parametrize("contexts", [(3, 1500), (1500, 3), (700, 1500, 40)])
def test_decodes_whose_windows_begin_far_apart(contexts: tuple[int, ...]) -> None:
    """Rows of one block are walked together: from where the first window begins, not the last."""
    case = Case("windows_apart", tuple((1, context) for context in contexts), window=16)
    inputs = make_inputs(case)
    expected, _ = run_function("reference")(inputs)
    out, _ = run_function("xla")(inputs)
    np.testing.assert_allclose(out, expected, rtol=0, atol=2 * tolerance(case))
