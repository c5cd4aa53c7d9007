"""A second oracle, which we did not write: the reference of JAX's own ragged paged attention kernel."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental.pallas.ops.tpu.ragged_paged_attention.kernel import ref_ragged_paged_attention

from jaxllm.pallas_kernels.paged_attention.cases import CASES, tolerance
from jaxllm.pallas_kernels.paged_attention.inputs import LAYER
from tests.pallas_kernels.paged_attention.oracle import cached_inputs, run_function
from tests.quick import QUICK

BY_NAME = {case.name: case for case in CASES}


@pytest.mark.parametrize("name", ["group_7", "soft_cap_window", "e5m2"])
def test_matches_reference_of_jax(name: str) -> None:
    # Its queries have no padding, and its scales are numbers.
    case = replace(BY_NAME[name], padding_tokens=0, padding_rows=0, traced=False)
    inputs = cached_inputs(case)
    out, cache = run_function("xla")(inputs)
    # It loops over rows in Python: their places must be known while it is traced.
    kv_lens: Any = np.asarray(inputs.batch.kv_lens)
    query_start: Any = np.asarray(inputs.batch.query_start)
    num_rows: Any = np.array([len(case.rows)], np.int32)

    def reference(q: jax.Array, pages: jax.Array, page_table: jax.Array) -> jax.Array:
        return ref_ragged_paged_attention(
            q,
            pages,
            kv_lens,
            page_table,
            query_start,
            num_rows,
            sm_scale=case.scale,
            sliding_window=case.window,
            soft_cap=case.soft_cap,
            k_scale=case.k_scale,
            v_scale=case.v_scale,
        )

    expected = jax.jit(reference, compiler_options=QUICK)(inputs.q, cache[LAYER], inputs.batch.page_table)
    got, wanted = (np.asarray(array).astype(np.float64) for array in (out, expected))
    # Both round: twice the error of one.
    np.testing.assert_allclose(got, wanted, rtol=0, atol=2 * tolerance(case))
