"""The TPU kernels, interpreted, against JAX's own ragged paged attention (its reference), where its features allow."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ref_ragged_paged_attention

from jaxllm.pallas_kernels.paged_attention.cases import CASES, Case, tolerance
from jaxllm.pallas_kernels.paged_attention.inputs import LAYER
from tests.pallas_kernels.paged_attention.oracle import cached_inputs
from tests.pallas_kernels.paged_attention.tpu.interpreter import interpret
from tests.thinned import thinned

NAMES = thinned(("soft_cap_window",), ("head_128", "mixed", "soft_cap", "window"))


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if case.name in NAMES], ids=lambda case: case.name)
def test_matches_jax(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = cached_inputs(case)
    out, cache = interpret(inputs, monkeypatch)
    batch, tokens = inputs.batch, case.num_tokens
    expected = ref_ragged_paged_attention(
        inputs.q[:tokens],
        cache[LAYER],
        batch.kv_lens,
        batch.page_table,
        batch.query_start,
        jnp.array([len(case.rows)], jnp.int32),
        sm_scale=case.scale,
        sliding_window=case.window,
        soft_cap=case.soft_cap,
    )
    got = np.asarray(out[:tokens]).astype(np.float64)
    np.testing.assert_allclose(got, np.asarray(expected).astype(np.float64), rtol=0, atol=2 * tolerance(case))
