"""Contexts of 128k tokens, and caches of more places and bytes than int32 counts."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxllm.pallas_kernels.paged_attention.backend import get_backend
from jaxllm.pallas_kernels.paged_attention.cases import LONG_CASES, Case, make_inputs
from jaxllm.pallas_kernels.paged_attention.inputs import LAYER, Inputs
from tests.pallas_kernels.paged_attention.oracle import cached_inputs, check, run_function
from tests.quick import FAST
from tests.thinned import thinned

PAGES = 270_000
"""2 layers of them at 4096 bytes are 2.2 GB."""
FEW = {"128k": "cpu", "128k_window": "xla"}
"""The implementation that CI has for each long case."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "implementation"),
    [
        pytest.param(case, name, id=f"{case.name}-{name}", marks=[pytest.mark.exhaustive] * (name != FEW[case.name]))
        for case in LONG_CASES
        for name in ("xla", "cpu")
    ],
)
def test_long_contexts(case: Case, implementation: str) -> None:
    check(case, *run_function(implementation, is_long=True)(cached_inputs(case)))


@pytest.mark.slow
@pytest.mark.parametrize("implementation", thinned(["xla", "cpu"], ["reference"]))
def test_pages_beyond_two_gigabytes(implementation: str) -> None:
    """The same pages at the far end of a cache of more than 2 ** 31 numbers give the same results."""
    inputs = make_inputs(Case("int8", ((1, 30), (1, 47), (17, 9)), kv_dtype="int8", k_scale=2**-5, v_scale=2**-4))
    out, cache = run_function(implementation)(inputs)
    held = inputs.kv_cache.shape[1]
    table = inputs.batch.page_table
    moved = replace(inputs.batch, page_table=jnp.where(table > 0, table + PAGES - held, 0))

    def run(large: jax.Array, inputs: Inputs) -> tuple[jax.Array, jax.Array]:
        return replace(inputs, kv_cache=large, batch=moved).call(implementation, jnp.int32(LAYER))

    def far_end(pages: jax.Array) -> jax.Array:
        own = get_backend(implementation).from_canonical(pages)
        return jnp.pad(own, ((0, 0), (PAGES - held, 0), *((0, 0),) * (own.ndim - 2)))

    large = jax.jit(far_end, compiler_options=FAST)(inputs.kv_cache)
    assert large.size > 2**31
    large_out, large = jax.jit(run, donate_argnums=0, compiler_options=FAST)(large, inputs)
    np.testing.assert_array_equal(large_out, out)
    after = get_backend(implementation).to_canonical(large[:, PAGES - held + 1 :], inputs.kv_cache.shape[2])
    np.testing.assert_array_equal(after, cache[:, 1:])
