"""Sampling from logits that are split over devices: the same tokens, and only small arrays travel."""

import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding

from jaxllm.executor.sampler.logprobs import listed_logprobs
from jaxllm.executor.sampler.rows import SamplingRows, SamplingState, empty_state, set_bias
from jaxllm.executor.sampler.sampler import SampledRows, sample
from jaxllm.executor.sampler.vocabulary import SAME, SPLIT, over_vocabulary
from jaxllm.models.sharding import make_mesh
from tests.jaxllm.executor.sampler.cases import MAX_LOGPROBS, make_state, packed_rows, run

ROWS, VOCAB = 6, 1024
RANDOM = np.random.default_rng(3)
LOGITS = (RANDOM.normal(size=(ROWS, VOCAB)) * 3).astype(np.float32)
STATE = make_state(
    (RANDOM.integers(0, 4, (ROWS, VOCAB)) * (RANDOM.random((ROWS, VOCAB)) < 0.3)).astype(np.int32),
    RANDOM.random((ROWS, VOCAB)) < 0.3,
    np.where(RANDOM.random((ROWS, VOCAB)) < 0.2, -np.inf, RANDOM.normal(size=(ROWS, VOCAB))).astype(np.float32),
)


def split_run(devices: int) -> Any:
    """`run`, with logits and state split over so many devices."""
    mesh = make_mesh(jax.devices(), devices)
    choose = over_vocabulary(partial(sample, max_logprobs=MAX_LOGPROBS), mesh, (SPLIT, SAME, SPLIT), (SAME, SPLIT))

    def function(logits: jax.Array, ints: jax.Array, floats: jax.Array, state: SamplingState) -> Any:
        return choose(logits, SamplingRows.unpack(ints, floats), state)

    split, same = NamedSharding(mesh, SPLIT), NamedSharding(mesh, SAME)
    return jax.jit(function, in_shardings=(split, same, same, split))


CASES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "random": {"temperature": 1.0},
    "filtered": {"temperature": 1.3, "top_k": 40, "top_p": 0.9, "min_p": 0.01},
    "top_p": {"temperature": 0.9, "top_p": 0.5},
    "everything": {
        "temperature": 1.0,
        "top_k": 100,
        "presence": 0.5,
        "frequency": 0.3,
        "repetition": 1.2,
        "bias": True,
        "logprobs": True,
    },
}


@pytest.fixture(scope="module", params=[2, 8])
def split(request: pytest.FixtureRequest) -> Any:
    return split_run(request.param)


@pytest.mark.parametrize("case", CASES)
def test_the_same_as_on_one_device(split: Any, case: str) -> None:
    rows = np.arange(ROWS)
    for step in range(8):
        ints, floats = packed_rows(ROWS, seed=rows * 7, step=step, slot=rows, **CASES[case])
        wanted, wanted_state = run(LOGITS, ints, floats, STATE)
        found, found_state = split(LOGITS, ints, floats, STATE)
        assert_equal(found, wanted)
        np.testing.assert_array_equal(found_state.seen, wanted_state.seen)


def assert_equal(found: SampledRows, wanted: SampledRows) -> None:
    np.testing.assert_array_equal(found.token_ids, wanted.token_ids)
    np.testing.assert_array_equal(found.logprobs.rank, wanted.logprobs.rank)
    np.testing.assert_array_equal(found.logprobs.top_ids, wanted.logprobs.top_ids)
    np.testing.assert_allclose(found.logprobs.logprob, wanted.logprobs.logprob, atol=1e-5)
    np.testing.assert_allclose(found.logprobs.top_logprobs, wanted.logprobs.top_logprobs, atol=1e-5)


def test_logits_do_not_travel(split: Any) -> None:
    ints, floats = packed_rows(ROWS)
    text = split.lower(LOGITS, ints, floats, STATE).compile().as_text()
    sizes = []
    for line in text.splitlines():
        if re.search(r" (all-gather|all-reduce|all-to-all|collective-permute)(-start)?\(", line):
            shapes = re.findall(r"(?:f32|s32|pred)\[([\d,]*)\]", line.split("(")[0])
            sizes += [int(np.prod([int(size) for size in shape.split(",") if size])) for shape in shapes]
    assert sizes
    # The largest is a block of each row.
    assert max(sizes) <= ROWS * 128, sizes


@pytest.mark.parametrize("devices", [2, 8])
def test_listed_tokens(devices: int) -> None:
    mesh = make_mesh(jax.devices(), devices)
    gather = over_vocabulary(listed_logprobs, mesh, (SPLIT, SAME), SAME)
    split = jax.jit(gather, in_shardings=(NamedSharding(mesh, SPLIT), NamedSharding(mesh, SAME)))
    token_ids = np.stack([[0, VOCAB - 1, VOCAB // 2, VOCAB // 2 - 1, 7, row] for row in range(ROWS)]).astype(np.int32)
    np.testing.assert_allclose(
        split(LOGITS, token_ids), listed_logprobs(jnp.asarray(LOGITS), jnp.asarray(token_ids)), atol=1e-5
    )


@pytest.mark.parametrize("devices", [2, 8])
def test_single_entries_of_the_bias(devices: int) -> None:
    mesh = make_mesh(jax.devices(), devices)
    put = jax.jit(over_vocabulary(set_bias, mesh, (SPLIT, SAME, SAME, SAME), SPLIT))
    slots = jnp.array([0, 2, -1, 2, 5], jnp.int32)
    tokens = jnp.array([0, VOCAB - 1, 7, 500, 128], jnp.int32)
    values = jnp.array([1.0, 2.0, 3.0, 4.0, 5.0], jnp.float32)
    state = empty_state(ROWS, VOCAB)
    np.testing.assert_array_equal(put(state, slots, tokens, values).bias, set_bias(state, slots, tokens, values).bias)
