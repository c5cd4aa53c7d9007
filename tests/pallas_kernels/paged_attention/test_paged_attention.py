"""The portable implementations of paged attention against an oracle in numpy, on every case."""

import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxllm.pallas_kernels.paged_attention import AttentionOptions, CacheGeometry, cache_shape, paged_attention
from jaxllm.pallas_kernels.paged_attention.cases import CASES, Case, make_inputs
from tests.pallas_kernels.paged_attention.covering import covering
from tests.pallas_kernels.paged_attention.oracle import cached_inputs, check, run_function, without_writing
from tests.quick import QUICK

PORTABLE = ("reference", "xla", "cpu")
"""Implementations that run on every machine; those for one kind of device have tests of their own."""

ONE_KV_HEAD = Case("one-kv-head", ((1, 5), (3, 4)), num_kv_heads=1)
"""XLA copies an array that loses an axis of size 1 on the way."""


def _cases() -> list[Any]:
    """Every case for the kernel, and a covering few for what XLA compiles, which takes most of the time."""
    few = covering(CASES)
    return [
        pytest.param(case, name, id=f"{case.name}-{name}")
        for case in CASES
        for name in PORTABLE
        if name == "cpu" or case in few
    ]


@pytest.mark.parametrize(("case", "implementation"), _cases())
def test_matches_numpy(case: Case, implementation: str) -> None:
    check(case, *run_function(implementation)(cached_inputs(case)))


@pytest.mark.parametrize("case", [CASES[0], CASES[6], ONE_KV_HEAD], ids=lambda case: case.name)
@pytest.mark.parametrize("implementation", PORTABLE)
def test_cache_is_updated_in_place(implementation: str, case: Case) -> None:
    inputs = make_inputs(case)
    geometry = CacheGeometry(8, 1024, case.page_size, case.num_kv_heads, case.head_size, "float32")
    kv_cache = jax.ShapeDtypeStruct(cache_shape(implementation, geometry), jnp.float32)
    size = math.prod(kv_cache.shape) * kv_cache.dtype.itemsize

    def all_layers(kv_cache: jax.Array) -> tuple[jax.Array, jax.Array]:
        def layer(carry: tuple[jax.Array, jax.Array], index: jax.Array) -> tuple[tuple[jax.Array, jax.Array], None]:
            q, kv_cache = carry
            arrays, options = (q, inputs.k, inputs.v, kv_cache), AttentionOptions(0.25)
            return paged_attention(*arrays, index, inputs.batch, options, implementation=implementation), None

        return jax.lax.scan(layer, (inputs.q, kv_cache), jnp.arange(8))[0]

    memory = jax.jit(all_layers, donate_argnums=0).lower(kv_cache).compile(QUICK).memory_analysis()
    assert memory is not None
    assert memory.alias_size_in_bytes >= size
    assert memory.temp_size_in_bytes < size / 2


READ_AGAIN = Case("read_again", ((1, 5), (1, 33), (7, 0), (70, 3), (3, 29)), head_size=32, window=40, padding_tokens=5)


@pytest.mark.parametrize("implementation", PORTABLE)
def test_layers_read_what_an_earlier_one_has_written(implementation: str) -> None:
    """The step's keys and values are in the cache, those that are given are anything."""
    inputs = cached_inputs(READ_AGAIN)
    wanted, cache = run_function(implementation)(inputs)
    found, after = run_function(implementation)(without_writing(inputs, cache))
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(after[:, 1:], cache[:, 1:])


def test_unknown_implementation() -> None:
    with pytest.raises(KeyError, match="cuda"):
        make_inputs(CASES[0]).call("cuda")


@pytest.mark.parametrize("implementation", PORTABLE)
def test_nan_stays_in_its_request(implementation: str) -> None:
    inputs = cached_inputs(Case("nan", ((1, 5), (3, 4))))
    bad_k, bad_v = (x.at[0].set(jnp.nan) for x in (inputs.k, inputs.v))
    run = run_function(implementation)
    out, cache = run(replace(inputs, k=bad_k, v=bad_v))
    good, _ = run(inputs)
    np.testing.assert_array_equal(out[1:], good[1:])
    assert np.isfinite(cache).all()
