"""Every implementation of paged attention against an oracle in numpy, on every case."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxllm.pallas_kernels.paged_attention import IMPLEMENTATIONS, paged_attention
from jaxllm.pallas_kernels.paged_attention.cases import CASES, Case, Inputs, make_inputs

TOLERANCE = {"float32": 2e-6, "bfloat16": 3e-2}
LAYER = 1


def numpy_attention(case: Case, inputs: Inputs) -> tuple[np.ndarray, np.ndarray]:
    """Row by row, token by token, in float64."""
    cache = np.asarray(inputs.kv_cache, np.float64)
    q, k, v = (np.asarray(x, np.float64) for x in (inputs.q, inputs.k, inputs.v))
    out = np.zeros(q.shape)
    group = case.num_heads // case.num_kv_heads
    token = 0
    for row, (new, computed) in enumerate(case.rows):
        table = np.asarray(inputs.batch.page_table)[row]
        for position in range(computed, computed + new):
            place = cache[LAYER, table[position // case.page_size], position % case.page_size]
            place[0::2], place[1::2] = k[token], v[token]
            first = 0 if case.window is None else max(0, position - case.window + 1)
            seen = [cache[LAYER, table[p // case.page_size], p % case.page_size] for p in range(first, position + 1)]
            context = np.stack(seen)
            for head in range(case.num_heads):
                keys, values = context[:, 2 * (head // group)], context[:, 2 * (head // group) + 1]
                scores = keys @ q[token, head] * case.head_size**-0.5
                if case.soft_cap is not None:
                    scores = case.soft_cap * np.tanh(scores / case.soft_cap)
                weights = np.exp(scores - scores.max())
                out[token, head] = (weights / weights.sum()) @ values
            token += 1
    return out, cache


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_matches_numpy(case: Case, implementation: str) -> None:
    inputs = make_inputs(case)
    run = jax.jit(
        functools.partial(
            paged_attention,
            scale=case.head_size**-0.5,
            window=case.window,
            soft_cap=case.soft_cap,
            implementation=implementation,
        )
    )
    out, cache = run(inputs.q, inputs.k, inputs.v, inputs.kv_cache, jnp.int32(LAYER), inputs.batch)
    expected, expected_cache = numpy_attention(case, inputs)
    assert np.isfinite(np.asarray(out, np.float32)).all()
    tokens = slice(case.num_tokens)
    np.testing.assert_allclose(np.asarray(out, np.float64)[tokens], expected[tokens], atol=TOLERANCE[case.dtype])
    # Page 0 belongs to nobody: padding may write it.
    np.testing.assert_array_equal(np.asarray(cache, np.float64)[:, 1:], expected_cache[:, 1:])


@pytest.mark.parametrize("case", [CASES[0], CASES[6]], ids=lambda case: case.name)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
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


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_nan_stays_in_its_request(implementation: str) -> None:
    case = Case("nan", ((1, 5), (3, 4)))
    inputs = make_inputs(case)
    bad_k, bad_v = (x.at[0].set(jnp.nan) for x in (inputs.k, inputs.v))
    run = functools.partial(paged_attention, scale=0.25, implementation=implementation)
    out, cache = run(inputs.q, bad_k, bad_v, inputs.kv_cache, 0, inputs.batch)
    good, _ = run(inputs.q, inputs.k, inputs.v, inputs.kv_cache, 0, inputs.batch)
    np.testing.assert_array_equal(out[1:], good[1:])
    assert np.isfinite(cache).all()
