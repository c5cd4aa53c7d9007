"""The portable implementations of latent attention against an oracle in numpy, on every case."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxllm.pallas_kernels.latent_attention import (
    LatentGeometry,
    LatentOptions,
    LatentSizes,
    latent_attention,
    latent_cache_shape,
)
from jaxllm.pallas_kernels.latent_attention.cases import (
    BENCHMARK_CASES,
    CASES,
    Case,
    abstract_inputs,
    make_inputs,
    minimum_bytes,
    products,
)
from tests.pallas_kernels.latent_attention.oracle import cached_inputs, check, run_function
from tests.quick import QUICK
from tests.thinned import thinned

PORTABLE = ("reference", "xla", "cpu")
"""Implementations that run here; `cpu` on machines whose only device is a CPU, like these of the tests."""

DEEPSEEK = LatentSizes(512, 64)


FEW = {
    "reference": ("mixed", "deepseek_bfloat16"),
    "xla": ("many_decodes", "prefill_chunk", "shared_prefix", "empty_rows", "deepseek", "short", "long"),
    "cpu": ("many_decodes", "mixed", "shared_prefix", "empty_rows", "one_head", "odd_sizes", "page_128"),
}
"""Cases that cover every path of an implementation; compiling takes nearly all the time of these tests."""

EVERY = [(case, name) for case in CASES for name in PORTABLE]


@pytest.mark.parametrize(
    ("case", "implementation"),
    thinned(
        (pair for pair in EVERY if pair[0].name in FEW[pair[1]]),
        (pair for pair in EVERY if pair[0].name not in FEW[pair[1]]),
    ),
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_matches_numpy(case: Case, implementation: str) -> None:
    check(case, *run_function(implementation)(cached_inputs(case)))


@pytest.mark.parametrize(
    ("case", "implementation"), [(CASES[0], "xla"), (CASES[5], "xla"), (CASES[5], "reference"), (CASES[5], "cpu")]
)
def test_cache_is_updated_in_place(case: Case, implementation: str) -> None:
    inputs = make_inputs(case)
    geometry = LatentGeometry(8, 2048, case.page_size, case.sizes, "float32")
    kv_cache = jax.ShapeDtypeStruct(latent_cache_shape(implementation, geometry), jnp.float32)
    size = math.prod(kv_cache.shape) * kv_cache.dtype.itemsize

    def all_layers(kv_cache: jax.Array) -> tuple[jax.Array, jax.Array]:
        def layer(carry: tuple[jax.Array, jax.Array], index: jax.Array) -> tuple[tuple[jax.Array, jax.Array], None]:
            q, kv_cache = carry
            arrays = q, inputs.q_rope, inputs.latent, inputs.k_rope, kv_cache
            options = LatentOptions(0.25)
            return latent_attention(*arrays, index, inputs.batch, options, implementation=implementation), None

        return jax.lax.scan(layer, (inputs.q_latent, kv_cache), jnp.arange(8))[0]

    memory = jax.jit(all_layers, donate_argnums=0).lower(kv_cache).compile(QUICK).memory_analysis()
    assert memory is not None
    assert memory.alias_size_in_bytes >= size
    assert memory.temp_size_in_bytes < size / 2


@pytest.mark.parametrize("implementation", PORTABLE)
def test_a_token_takes_what_the_formula_says(implementation: str) -> None:
    geometry = LatentGeometry(27, 10, 16, DEEPSEEK, "bfloat16")
    assert math.prod(latent_cache_shape(implementation, geometry)) == 27 * 10 * 16 * 576


def test_rows_for_tpus_are_whole() -> None:
    geometry = LatentGeometry(2, 10, 16, DEEPSEEK, "bfloat16", for_tpu=True)
    assert latent_cache_shape("xla", geometry) == (2, 10, 16, 640)


def test_nothing_grows_with_tokens_times_context() -> None:
    """XLA's memory for a prompt of 512 tokens over a table of 32 k places."""
    inputs = abstract_inputs(Case("wide", ((512, 32_000),), num_heads=16, latent_size=512, rope_size=64, layers=1))
    compiled = jax.jit(lambda inputs: inputs.call("xla", 0)).lower(inputs).compile(QUICK)
    memory = compiled.memory_analysis()
    assert memory is not None
    cache = math.prod(inputs.kv_cache.shape) * 4
    # A score for every head, query and key would be 1 GB, gathered keys of all queries more.
    assert memory.temp_size_in_bytes - cache < 2**27


def test_unknown_implementation() -> None:
    with pytest.raises(KeyError, match="cuda"):
        make_inputs(CASES[0]).call("cuda")


@pytest.mark.parametrize("implementation", ["xla", "cpu"])
def test_nan_stays_in_its_request(implementation: str) -> None:
    inputs = cached_inputs(Case("nan", ((1, 5), (3, 4))))
    run = run_function(implementation)
    out, cache = run(replace(inputs, latent=inputs.latent.at[0].set(jnp.nan)))
    good, _ = run(inputs)
    np.testing.assert_array_equal(out[1:], good[1:])
    assert np.isfinite(cache).all()


def test_shapes_without_memory_are_those_of_the_arrays() -> None:
    for case in CASES:
        shapes = [
            jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), make(case)) for make in (cached_inputs, abstract_inputs)
        ]
        assert shapes[0] == shapes[1]


def test_names_are_unique() -> None:
    every = (*CASES, *BENCHMARK_CASES)
    assert len({case.name for case in every}) == len(every)


def test_counts() -> None:
    case = Case("", ((1, 17), (2, 0)), num_heads=16, latent_size=512, rope_size=64)
    assert minimum_bytes(case) == 4 * (3 * (16 * (576 + 512) + 2 * 576) + 2 * 16 * 576)
    assert products(case) == 2 * (18 + 1 + 2) * 16 * (576 + 512)
