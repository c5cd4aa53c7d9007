"""Whole-sampler properties: right distributions, independence of the batch, nothing copied, nothing recompiled."""

import zlib
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxllm.executor.sampler.row_numbers import FLOAT_FIELDS
from jaxllm.executor.sampler.rows import IN_PROMPT, INT_FIELDS, SamplingRows, SamplingState, empty_state
from jaxllm.executor.sampler.sampler import sample
from tests.jaxllm.executor.sampler.cases import MAX_LOGPROBS, filtered, make_state, packed_rows, penalised, run
from tests.thinned import drawn

# More than two blocks, the last one incomplete.
VOCAB = 300
DRAWS = 20_000
RANDOM = np.random.default_rng(0)
LOGITS = (RANDOM.normal(size=VOCAB) * 2).astype(np.float32)
COUNTS = (RANDOM.integers(0, 4, VOCAB) * (RANDOM.random(VOCAB) < 0.3)).astype(np.int32)
SEEN = RANDOM.random(VOCAB) < 0.3
BIAS = np.where(RANDOM.random(VOCAB) < 0.2, -np.inf, RANDOM.normal(size=VOCAB)).astype(np.float32)


def one_slot(counts: np.ndarray = COUNTS, seen: np.ndarray = SEEN, bias: np.ndarray = BIAS) -> SamplingState:
    return make_state(counts[None], seen[None], bias[None])


def assert_drawn_from(tokens: np.ndarray, chances: np.ndarray) -> None:
    """Chi-squared test; cells with fewer than 5 expected draws are pooled.

    The seeds are fixed, so it passes always or never; with some 50 cases, one in 10,000 is rare enough.
    """
    observed = np.bincount(tokens, minlength=len(chances))
    assert observed[chances == 0].sum() == 0
    expected = chances * len(tokens)
    rare = expected < 5
    pooled = [(cell[rare].sum(), *cell[~rare]) for cell in (observed, expected)]
    cells = [(seen, wanted) for seen, wanted in zip(*pooled, strict=True) if wanted > 0]
    if len(cells) > 1:
        assert stats.chisquare(*zip(*cells, strict=True)).pvalue > 1e-4


FILTERS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.5},
    {"temperature": 3.0},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.0, "top_k": 20},
    {"temperature": 1.0, "top_k": 299},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 1.0, "top_p": 0.3},
    {"temperature": 1.0, "top_p": 1e-6},
    {"temperature": 1.0, "min_p": 0.05},
    {"temperature": 1.5, "top_k": 50, "top_p": 0.8},
    {"temperature": 0.8, "top_k": 50, "min_p": 0.02},
    {"temperature": 2.0, "top_k": 100, "top_p": 0.7, "min_p": 0.01},
]


@pytest.mark.parametrize(
    ("filters", "features"), drawn(FILTERS, ["plain", "bias", "penalties", "both"], share=4), ids=str
)
def test_distribution(filters: dict[str, Any], features: str) -> None:
    penalties: dict[str, Any] = (
        {"presence": 0.4, "frequency": 0.3, "repetition": 1.3} if features in {"penalties", "both"} else {}
    )
    bias = features in {"bias", "both"}
    # Cases with the same seed would all be lucky or unlucky together.
    seed = zlib.crc32(f"{filters} {features}".encode()) >> 1
    ints, floats = packed_rows(DRAWS, seed=seed, step=np.arange(DRAWS), bias=bias, **filters, **penalties)
    sampled, state = run(jnp.tile(LOGITS, (DRAWS, 1)), ints, floats, one_slot())

    logits = LOGITS + BIAS if bias else LOGITS
    if penalties:
        logits = penalised(logits, COUNTS, SEEN, **penalties)
    tokens = np.asarray(sampled.token_ids)
    assert_drawn_from(tokens, filtered(logits, **filters))
    # Tokens are counted for penalties only.
    new = np.bincount(tokens, minlength=VOCAB) if penalties else 0
    np.testing.assert_array_equal(state.seen[0] & (IN_PROMPT - 1), COUNTS + new)


def test_seeds_are_as_good_as_steps() -> None:
    ints, floats = packed_rows(DRAWS, seed=np.arange(DRAWS) - DRAWS // 2, temperature=1.0)
    sampled, _ = run(jnp.tile(LOGITS, (DRAWS, 1)), ints, floats, one_slot())
    assert_drawn_from(np.asarray(sampled.token_ids), filtered(LOGITS, 1.0))


def test_greedy_rows_take_the_largest() -> None:
    logits = RANDOM.normal(size=(DRAWS, VOCAB)).astype(np.float32)
    temperature = np.arange(DRAWS) % 2
    ints, floats = packed_rows(DRAWS, temperature=temperature)
    tokens = np.asarray(run(jnp.asarray(logits), ints, floats, one_slot())[0].token_ids)
    largest = logits.argmax(1)
    np.testing.assert_array_equal(tokens[::2], largest[::2])
    assert (tokens[1::2] != largest[1::2]).any()
    ints, floats = packed_rows(DRAWS)
    np.testing.assert_array_equal(run(jnp.asarray(logits), ints, floats, one_slot())[0].token_ids, largest)


def test_a_row_does_not_depend_on_its_batch() -> None:
    every = 64
    logits = (RANDOM.normal(size=(every, 1000)) * 3).astype(np.float32)
    kinds: dict[str, Any] = {
        "temperature": np.tile([0.0, 0.7, 1.0, 1.5], 16),
        "top_k": np.tile([0, 0, 30, 0, 5, 40, 0, 0], 8),
        "top_p": np.tile([1.0, 0.9], 32),
        "repetition": np.tile([1.0, 1.2, 1.0, 1.0], 16),
    }
    ints, floats = packed_rows(
        every, seed=np.arange(every) * 17, step=np.arange(every) % 7, slot=np.arange(every), **kinds
    )
    state = SamplingState(
        jnp.asarray(RANDOM.integers(0, 2, (every, 1000), np.int32)),
        jnp.zeros((every, 1000)),
    )
    together = np.asarray(run(jnp.asarray(logits), ints, floats, state)[0].token_ids)
    for chosen in (np.arange(3, 40, 5), np.arange(every)[::-1]):
        tokens = run(jnp.asarray(logits[chosen]), ints[:, chosen], floats[:, chosen], state)[0].token_ids
        np.testing.assert_array_equal(tokens, together[chosen])
    for row in range(every):
        part = slice(row, row + 1)
        assert run(jnp.asarray(logits[part]), ints[:, part], floats[:, part], state)[0].token_ids[0] == together[row]


def test_rows_that_do_not_count_change_nothing() -> None:
    ints, floats = jnp.zeros((len(INT_FIELDS), 8), jnp.int32), jnp.zeros((len(FLOAT_FIELDS), 8), jnp.float32)
    _, state = run(jnp.tile(LOGITS, (8, 1)), ints, floats, one_slot())
    np.testing.assert_array_equal(state.seen[0] & (IN_PROMPT - 1), COUNTS)


def test_logprobs_are_of_the_raw_logits() -> None:
    ints, floats = packed_rows(8, temperature=0.3, top_k=2, repetition=1.5, bias=True, logprobs=True, step=np.arange(8))
    sampled, _ = run(jnp.tile(LOGITS, (8, 1)), ints, floats, one_slot())
    raw = LOGITS - np.log(np.exp(LOGITS.astype(np.float64)).sum())
    np.testing.assert_allclose(sampled.logprobs.logprob, raw[np.asarray(sampled.token_ids)], atol=1e-5)
    np.testing.assert_array_equal(sampled.logprobs.top_ids[0], np.argsort(-raw)[:MAX_LOGPROBS])
    ints, floats = packed_rows(8, temperature=0.3)
    assert not np.any(run(jnp.tile(LOGITS, (8, 1)), ints, floats, one_slot())[0].logprobs.top_logprobs)


@pytest.mark.parametrize("extreme", [np.finfo(np.float32).max, np.inf, -np.inf, np.nan])
def test_extreme_logits_still_give_a_token(extreme: float) -> None:
    logits = np.full((8, VOCAB), extreme, np.float32)
    logits[4:, 1::2] = -np.finfo(np.float32).max
    cases: list[dict[str, Any]] = [
        {},
        {"temperature": 1e-5},
        {"temperature": 1.0, "top_k": 3, "top_p": 0.5, "min_p": 0.1},
    ]
    for values in cases:
        ints, floats = packed_rows(8, step=np.arange(8), **values)
        tokens = np.asarray(run(jnp.asarray(logits), ints, floats, one_slot())[0].token_ids)
        assert ((tokens >= 0) & (tokens < VOCAB)).all()
        if extreme > 0:
            assert (tokens[4:] % 2 == 0).all()


def test_no_value_compiles_anew() -> None:
    step = jax.jit(lambda *inputs: run(*inputs)[0].token_ids)
    for number in range(12):
        values = {"temperature": number % 3, "top_k": number % 5, "top_p": 1 - (number % 4) / 8, "presence": number % 2}
        ints, floats = packed_rows(4, seed=number, step=number, bias=number > 5, logprobs=number > 8, **values)
        step(jnp.tile(LOGITS, (4, 1)), ints, floats, one_slot())
    assert step._cache_size() == 1  # type: ignore[attr-defined]


def test_state_is_updated_in_place() -> None:
    rows, slots, vocab = 4, 256, 1024

    @partial(jax.jit, donate_argnums=3)
    def step(logits: jax.Array, ints: jax.Array, floats: jax.Array, state: SamplingState) -> Any:
        return sample(logits, SamplingRows.unpack(ints, floats), state, max_logprobs=MAX_LOGPROBS)

    state = jax.eval_shape(lambda: empty_state(slots, vocab))
    compiled = step.lower(jax.ShapeDtypeStruct((rows, vocab), np.float32), *packed_rows(rows), state).compile()
    memory = compiled.memory_analysis()
    assert memory is not None
    assert memory.alias_size_in_bytes == slots * vocab * 8
    assert memory.temp_size_in_bytes < 12 * rows * vocab * 4
