"""What latent attention of some layers has: a window, latents of another layer, an index of groups of keys."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxllm.pallas_kernels.latent_attention import KeyIndex, LatentOptions, latent_attention
from jaxllm.pallas_kernels.latent_attention.cases import LAYER, Case, Inputs, make_inputs
from tests.pallas_kernels.latent_attention.oracle import cached_inputs, check, run_function
from tests.quick import QUICK

ROWS = ((1, 5), (1, 0), (1, 33), (7, 0), (30, 3), (3, 29))
WINDOWED = Case("windowed", ROWS, window=11, page_size=16, padding_tokens=5, padding_rows=3)
GROUPED = Case("grouped", ROWS, page_size=16, padding_tokens=5, padding_rows=3, index_heads=3, index_size=32, top=9)
POOL, SIZE = 3, 16
IMPLEMENTATIONS = ("reference", "xla", "cpu")


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_window(implementation: str) -> None:
    check(WINDOWED, *run_function(implementation)(cached_inputs(WINDOWED)))


def test_a_window_that_blocks_of_keys_are_left_out_for() -> None:
    """The kernel for CPUs begins with the first block that is seen, where rows share pages, too."""
    case = Case("far", ((1, 300), (1, 131), (1, 300), (170, 129)), window=70, prefix=128)
    check(case, *run_function("cpu")(cached_inputs(case)))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_latents_of_a_smaller_size(implementation: str) -> None:
    """Rows of the cache are longer than its keys: what comes after those is neither read nor written."""
    case = Case("small", ROWS, page_size=16)
    inputs = cached_inputs(case)
    wide = jnp.pad(inputs.kv_cache, ((0, 0),) * 3 + ((0, 24),), constant_values=7.0)
    out, cached = replace(inputs, kv_cache=wide).call(implementation)
    check(case, out, cached[..., : case.sizes.key])
    if implementation == "cpu":
        np.testing.assert_array_equal(cached[..., case.sizes.key :], 7.0)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_latents_of_another_layer(implementation: str) -> None:
    """What is given in place of new ones means nothing, and the cache stays as it is."""
    wanted, written = run_function(implementation)(cached_inputs(WINDOWED))
    inputs = replace(cached_inputs(WINDOWED), kv_cache=written)
    nothing = jnp.full_like(inputs.latent, jnp.nan), jnp.full_like(inputs.k_rope, jnp.nan)
    options = LatentOptions(WINDOWED.scale, window=WINDOWED.window, writes=False)
    out, cache = latent_attention(
        *(inputs.q_latent, inputs.q_rope, *nothing, inputs.kv_cache, LAYER, inputs.batch, options),
        implementation=implementation,
    )
    np.testing.assert_allclose(out[: WINDOWED.num_tokens], wanted[: WINDOWED.num_tokens], atol=1e-6)
    np.testing.assert_array_equal(cache, written)


def grouped_inputs(top: int) -> Inputs:
    """Inputs whose index has groups: half of what the cache has for it are keys."""
    inputs = make_inputs(replace(GROUPED, top=top))
    assert inputs.index is not None
    bias = jnp.asarray(np.random.default_rng(3).standard_normal((POOL, SIZE)), jnp.float32)
    index = KeyIndex(inputs.index.query[..., :SIZE], inputs.index.weights, inputs.index.key, top, bias)
    return replace(inputs, index=index)


def chosen_tokens(stored: np.ndarray, index: KeyIndex, token: int) -> np.ndarray:
    """Positions that a token sees, of those whose index keys and weights are `stored` [K, 2 * I]."""
    complete = len(stored) // POOL
    groups = stored[: complete * POOL].reshape(complete, POOL, 2 * SIZE)
    weights = np.exp(groups[..., SIZE:] + np.asarray(index.bias))
    keys = (weights / weights.sum(axis=1, keepdims=True) * groups[..., :SIZE]).sum(axis=1)
    products = np.maximum(keys @ np.asarray(index.query[token], np.float64).T, 0) * SIZE**-0.5
    best = np.argsort(-(products @ np.asarray(index.weights[token], np.float64)), kind="stable")[: index.top // POOL]
    return np.concatenate(
        [*(np.arange(POOL) + POOL * group for group in best), np.arange(complete * POOL, len(stored))]
    )


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("top", [9, 63])
def test_groups_of_keys(implementation: str, top: int) -> None:
    """The best groups are seen, and the tokens of the unfinished one; or all where no request has more."""
    inputs = grouped_inputs(top)
    out, cached = jax.jit(lambda inputs: inputs.call(implementation), compiler_options=QUICK)(inputs)
    case, batch, index = inputs.case, inputs.batch, inputs.index
    assert index is not None
    for token in range(case.num_tokens):
        table, seen = np.asarray(batch.page_table[batch.token_rows[token]]), int(batch.positions[token]) + 1
        stored = np.asarray(cached)[LAYER, table].reshape(-1, case.sizes.token)[:seen].astype(np.float64)
        keys = stored[chosen_tokens(stored[:, case.sizes.key :], index, token).astype(int), : case.sizes.key]
        query = np.concatenate([inputs.q_latent[token], inputs.q_rope[token]], axis=-1).astype(np.float64)
        weights = np.exp(query @ keys.T * case.scale)
        wanted = weights / weights.sum(axis=-1, keepdims=True) @ keys[:, : case.latent_size]
        np.testing.assert_allclose(out[token], wanted, atol=5e-6)


def test_kernels_refuse_what_they_lack() -> None:
    with pytest.raises(ValueError, match="'tpu' does not support an index of groups of keys"):
        grouped_inputs(9).call("tpu")
