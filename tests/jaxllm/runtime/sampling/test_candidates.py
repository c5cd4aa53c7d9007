"""What a TPU does to choose tokens gives those that the rest of the sampler gives."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding

from jaxllm.models.sharding import make_mesh
from jaxllm.runtime.sampling.blocks import BLOCK, argmax, argmax_in_one_pass
from jaxllm.runtime.sampling.candidates import CANDIDATES, KEPT, STEP, candidates
from jaxllm.runtime.sampling.filters import softmax_weights, top_p_threshold
from jaxllm.runtime.sampling.rows import SamplingRows, SamplingState, empty_state
from jaxllm.runtime.sampling.sampler import sample
from jaxllm.runtime.sampling.vocabulary import SAME, SPLIT, over_vocabulary
from tests.jaxllm.runtime.sampling.cases import MAX_LOGPROBS, packed_rows

VOCAB = 2 * CANDIDATES + 5 * BLOCK + 7
"""Large enough that candidates are looked for, and ends inside a block."""
RANDOM = np.random.default_rng(5)
directly, by_candidates = (jax.jit(partial(top_p_threshold, by_candidates=few)) for few in (False, True))


@pytest.mark.parametrize("size", [CANDIDATES * 2, VOCAB])
def test_the_largest_of_every_group(size: int) -> None:
    values = RANDOM.random((3, size), np.float32)
    found, rest = (np.asarray(array) for array in jax.jit(candidates)(values))
    groups = np.pad(values, ((0, 0), (0, -size % (STEP * BLOCK)))).reshape(3, -1, STEP * BLOCK)
    ordered = np.pad(-np.sort(-groups, axis=1), ((0, 0), (0, KEPT), (0, 0)))
    np.testing.assert_array_equal(np.sort(found), np.sort(ordered[:, :KEPT].reshape(3, -1)))
    np.testing.assert_array_equal(rest, ordered[:, KEPT - 1].max(1))


def peaked() -> np.ndarray:
    return RANDOM.normal(size=(4, VOCAB)) * 4


def flat() -> np.ndarray:
    """Candidates hold a fraction of the mass."""
    return RANDOM.normal(size=(4, VOCAB)) * 0.1


def crowded() -> np.ndarray:
    """The most likely tokens share one group, and are more than it keeps."""
    logits = RANDOM.normal(size=(4, VOCAB))
    logits[:, 3 :: STEP * BLOCK] += 20
    return logits


def tied() -> np.ndarray:
    return np.round(RANDOM.normal(size=(4, VOCAB)) * 2)


@pytest.mark.parametrize("make", [peaked, flat, crowded, tied])
@pytest.mark.parametrize("top_p", [1e-6, 0.5, 0.9, 0.9999, 1.0])
def test_the_same_tokens_are_kept(make: Any, top_p: float) -> None:
    logits = make().astype(np.float32)
    weights = softmax_weights(jnp.asarray(logits), jnp.max(logits, 1), jnp.array([0.6, 1.0, 0.3, 2.0]))
    limits = jnp.full(4, top_p, jnp.float32)
    found, wanted = (
        np.asarray(weights) >= np.asarray(of(weights, limits))[:, None] for of in (by_candidates, directly)
    )
    # A sum in another order may round to the other side of the limit, by one token.
    if make is tied or top_p < 0.99:
        np.testing.assert_array_equal(found, wanted)
    else:
        np.testing.assert_allclose(found.sum(1), wanted.sum(1), rtol=1e-3, atol=1)


def test_candidates_are_enough_for_one_row_and_not_for_the_next() -> None:
    logits = np.concatenate([peaked(), crowded(), flat()]).astype(np.float32)
    weights = softmax_weights(jnp.asarray(logits), jnp.max(logits, 1), jnp.ones(12))
    together = by_candidates(weights, jnp.full(12, 0.9))
    alone = [by_candidates(weights[row : row + 1], jnp.full(1, 0.9))[0] for row in range(12)]
    np.testing.assert_array_equal(together, alone)


def test_the_first_of_the_largest() -> None:
    values = np.round(RANDOM.normal(size=(6, 700))).astype(np.float32)
    values[3], values[4], values[5] = -np.inf, np.nan, np.inf
    found, wanted = (jax.jit(of)(jnp.asarray(values)) for of in (argmax_in_one_pass, argmax))
    np.testing.assert_array_equal(found[0][jnp.array([0, 1, 2, 5])], wanted[0][jnp.array([0, 1, 2, 5])])
    np.testing.assert_array_equal(found[1][:4], wanted[1][:4])
    assert all(0 <= index < 700 for index in found[0])


CASES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "random": {"temperature": 1.0},
    "top_p": {"temperature": np.array([0.6, 0.0, 2.0, 1.0]), "top_p": np.array([0.9, 0.9, 0.5, 1.0])},
    "filtered": {"temperature": 1.3, "top_k": np.array([40, 0, 5, 9000]), "top_p": 0.9, "min_p": 0.01},
}


def sample_rows(devices: int, accelerated: bool) -> Any:
    """`sample` on packed rows, split over so many devices."""
    mesh = make_mesh(jax.devices(), devices)
    part = partial(sample, max_logprobs=MAX_LOGPROBS, accelerated=accelerated)
    choose = over_vocabulary(part, mesh, (SPLIT, SAME, SPLIT), (SAME, SPLIT))

    def function(logits: jax.Array, ints: jax.Array, floats: jax.Array, state: SamplingState) -> Any:
        return choose(logits, SamplingRows.unpack(ints, floats), state)

    split, same = NamedSharding(mesh, SPLIT), NamedSharding(mesh, SAME)
    return jax.jit(function, in_shardings=(split, same, same, split))


@pytest.mark.parametrize("devices", [1, 2])
def test_the_same_tokens_are_chosen(devices: int) -> None:
    # Both parts look for candidates.
    logits = (RANDOM.normal(size=(4, 2 * (2 * CANDIDATES + BLOCK))) * 3).astype(np.float32)
    plain, accelerated = (sample_rows(devices, kind) for kind in (False, True))
    for values in CASES.values():
        for step in range(3):
            ints, floats = packed_rows(4, seed=np.arange(4), step=step, slot=np.arange(4), **values)
            results = [of(logits, ints, floats, empty_state(*logits.shape))[0] for of in (plain, accelerated)]
            np.testing.assert_array_equal(*(result.token_ids for result in results))
