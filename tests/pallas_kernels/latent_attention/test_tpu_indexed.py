"""Attention to chosen keys on TPUs: three kernels in Pallas's interpreter, against the formula in numpy."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.pallas.mosaic.interpret import interpret_pallas_call
from jax.experimental.pallas import tpu as pltpu

from jaxllm.pallas_kernels.latent_attention import KeyIndex, LatentOptions
from jaxllm.pallas_kernels.latent_attention.cases import LAYER, Case, Inputs, make_inputs
from jaxllm.pallas_kernels.latent_attention.tpu.attention import BACKEND, tpu_indexed_latent_attention
from jaxllm.pallas_kernels.latent_attention.tpu.index import index_scores
from jaxllm.pallas_kernels.latent_attention.tpu.select import select_places
from tests.pallas_kernels.latent_attention.test_indexed import oracle
from tests.quick import QUICK

CASE = Case(
    "mixed",
    ((1, 5), (1, 63), (3, 29)),
    padding_tokens=2,
    padding_rows=3,
    index_heads=3,
    index_size=16,
    top=16,
)
INTERPRET = pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan")


def for_tpu(inputs: Inputs) -> jax.Array:
    """The cache of a case as the backend has it."""
    return BACKEND.from_canonical(inputs.kv_cache, inputs.case.sizes)


def no_races() -> bool:
    """Whether the interpreter found none in the last call."""
    assert interpret_pallas_call.races is not None
    return not interpret_pallas_call.races.races_found


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float32", marks=pytest.mark.exhaustive)])
def test_matches_numpy(dtype: str) -> None:
    inputs = make_inputs(replace(CASE, dtype=dtype, sinks=True))
    index = inputs.index
    assert index is not None

    def run(inputs: Inputs, cache: jax.Array) -> tuple[jax.Array, jax.Array]:
        out, cache, _ = tpu_indexed_latent_attention(
            inputs.q_latent,
            inputs.q_rope,
            inputs.latent,
            inputs.k_rope,
            cache,
            jnp.int32(LAYER),
            inputs.prepared("tpu"),
            LatentOptions(inputs.case.scale, sinks=inputs.sinks),
            index,
            interpret=INTERPRET,
        )
        return out, BACKEND.to_canonical(cache, inputs.case.sizes)

    out, cached = jax.block_until_ready(jax.jit(run, compiler_options=QUICK)(inputs, for_tpu(inputs)))
    assert no_races()
    wanted = oracle(inputs, np.asarray(cached))
    np.testing.assert_allclose(out[: CASE.num_tokens], wanted, atol=5e-6 if dtype == "float32" else 3e-2)
    assert np.isfinite(out.astype(jnp.float32)).all()


@pytest.mark.slow
def test_scores_of_several_blocks() -> None:
    """Of a token with more index keys than a block has, and of one with as many as two blocks."""
    case = replace(CASE, rows=((1, 2047), (1, 1500)), padding_tokens=0, padding_rows=0)
    inputs = make_inputs(case)
    index, cache = inputs.index, for_tpu(inputs)
    assert index is not None

    def run(index: KeyIndex, cache: jax.Array) -> jax.Array:
        batch = inputs.batch
        where = cache, jnp.int32(LAYER), batch.page_table, batch.positions, jnp.int32(2), 128
        return index_scores(index, *where, keys=1024, interpret=INTERPRET)

    found = np.asarray(jax.jit(run, compiler_options=QUICK)(index, cache))
    assert no_races()
    for token, (_, computed) in enumerate(case.rows):
        stored = np.asarray(cache[LAYER, inputs.batch.page_table[token], :, 128:144], np.float64).reshape(-1, 16)
        products = np.maximum(stored[: computed + 1] @ np.asarray(index.query[token], np.float64).T, 0)
        wanted = products @ np.asarray(index.weights[token], np.float64) * 16**-0.5
        np.testing.assert_allclose(found[token, : computed + 1], wanted, atol=2e-5)


def test_selection_is_that_of_a_stable_sort() -> None:
    """With many equal scores, for tokens with fewer keys than are chosen, as many, and more."""
    rng, top = np.random.default_rng(0), 200
    positions = np.array([5, 199, 200, 500, 2047], np.int32)
    scores = np.round(rng.standard_normal((len(positions), 2048)), 1).astype(np.float32)
    places = rng.permutation(10**5)[: scores.size].reshape(scores.shape).astype(np.int32)

    def run(scores: jax.Array, places: jax.Array, positions: jax.Array) -> jax.Array:
        return select_places(scores, places, positions, top, interpret=INTERPRET)

    found = np.asarray(jax.jit(run, compiler_options=QUICK)(scores, places, positions))
    assert no_races()
    for token, position in enumerate(positions):
        best = np.argsort(-scores[token, : position + 1], kind="stable")[:top]
        np.testing.assert_array_equal(found[token, : len(best)], places[token, np.sort(best)])
