"""Every implementation of paged attention against an oracle in numpy, on every case."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxllm.pallas_kernels.paged_attention import paged_attention
from jaxllm.pallas_kernels.paged_attention.cases import CASES, Case, make_inputs
from tests.pallas_kernels.paged_attention.oracle import cached_inputs, check, run_function

PORTABLE = ("reference", "xla", "cpu")
"""Implementations that run on every machine; those for one kind of device have tests of their own."""


@pytest.mark.parametrize("implementation", PORTABLE)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_matches_numpy(case: Case, implementation: str) -> None:
    check(case, *run_function(implementation)(cached_inputs(case)))


@pytest.mark.parametrize("case", [CASES[0], CASES[6]], ids=lambda case: case.name)
@pytest.mark.parametrize("implementation", PORTABLE)
def test_cache_is_updated_in_place(implementation: str, case: Case) -> None:
    inputs = make_inputs(case)
    kv_cache = jnp.zeros((8, 4096, *inputs.kv_cache.shape[2:]), jnp.float32)

    def all_layers(kv_cache: jax.Array) -> tuple[jax.Array, jax.Array]:
        def layer(carry: tuple[jax.Array, jax.Array], index: jax.Array) -> tuple[tuple[jax.Array, jax.Array], None]:
            q, kv_cache = carry
            q, kv_cache = paged_attention(
                q, inputs.k, inputs.v, kv_cache, index, inputs.batch, scale=0.25, implementation=implementation
            )
            return (q, kv_cache), None

        return jax.lax.scan(layer, (inputs.q, kv_cache), jnp.arange(8))[0]

    memory = jax.jit(all_layers, donate_argnums=0).lower(kv_cache).compile().memory_analysis()
    assert memory is not None
    assert memory.alias_size_in_bytes >= kv_cache.nbytes
    assert memory.temp_size_in_bytes < kv_cache.nbytes / 2


def test_unknown_implementation() -> None:
    inputs = make_inputs(CASES[0])
    with pytest.raises(KeyError, match="cuda"):
        paged_attention(
            inputs.q, inputs.k, inputs.v, inputs.kv_cache, 0, inputs.batch, scale=1.0, implementation="cuda"
        )


@pytest.mark.parametrize("implementation", PORTABLE)
def test_nan_stays_in_its_request(implementation: str) -> None:
    case = Case("nan", ((1, 5), (3, 4)))
    inputs = make_inputs(case)
    bad_k, bad_v = (x.at[0].set(jnp.nan) for x in (inputs.k, inputs.v))
    run = functools.partial(paged_attention, scale=0.25, implementation=implementation)
    out, cache = run(inputs.q, bad_k, bad_v, inputs.kv_cache, 0, inputs.batch)
    good, _ = run(inputs.q, inputs.k, inputs.v, inputs.kv_cache, 0, inputs.batch)
    np.testing.assert_array_equal(out[1:], good[1:])
    assert np.isfinite(cache).all()
