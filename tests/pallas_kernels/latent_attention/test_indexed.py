"""Latent attention to the keys that an index chooses: against numpy, to as many as there are, alone and together."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxllm.pallas_kernels.latent_attention.cases import LAYER, Case, Inputs, abstract_inputs, make_inputs
from jaxllm.pallas_kernels.latent_attention.check import compare, run_case
from jaxllm.pallas_kernels.ragged_batch import RaggedBatch
from tests.quick import QUICK

INDEX: dict[str, Any] = {"index_heads": 3, "index_size": 16, "top": 8, "page_size": 16}
MIXED = Case("mixed", ((1, 5), (1, 0), (1, 33), (7, 0), (30, 3), (3, 29)), padding_tokens=5, padding_rows=3, **INDEX)


IMPLEMENTATIONS = ("reference", "xla", "cpu")


@cache
def run(implementation: str, *, indexed: bool = True) -> Callable[[Inputs], tuple[jax.Array, jax.Array]]:
    """A compiled call."""
    return jax.jit(lambda inputs: (inputs if indexed else replace(inputs, index=None)).call(implementation))


def whole_numbers(case: Case) -> Inputs:
    """Inputs whose index scores are exact, many of them equal and many zero: the scale of 16 is a quarter."""
    inputs = make_inputs(case)
    assert inputs.index is not None
    start = case.sizes.key
    index = jax.tree.map(jnp.round, inputs.index)
    rounded = jnp.round(inputs.kv_cache[..., start:])
    return replace(inputs, index=index, kv_cache=inputs.kv_cache.at[..., start:].set(rounded))


def oracle(inputs: Inputs, cached: np.ndarray) -> np.ndarray:
    """The result of every token by the formula, with a stable sort; `cached` is the cache that was returned."""
    case, index, batch = inputs.case, inputs.index, inputs.batch
    assert index is not None
    out = np.zeros((case.num_tokens, case.num_heads, case.latent_size))
    for token in range(case.num_tokens):
        table, seen = np.asarray(batch.page_table[batch.token_rows[token]]), int(batch.positions[token]) + 1
        stored = cached[LAYER, table].reshape(-1, case.sizes.token)[:seen].astype(np.float64)
        products = np.maximum(stored[:, case.sizes.key :] @ np.asarray(index.query[token], np.float64).T, 0)
        scores = products * case.index_size**-0.5 @ np.asarray(index.weights[token], np.float64)
        chosen = stored[np.argsort(-scores, kind="stable")[: index.top]]
        query = np.concatenate([inputs.q_latent[token], inputs.q_rope[token]], axis=-1).astype(np.float64)
        logits = query @ chosen[:, : case.sizes.key].T * case.scale
        if inputs.sinks is not None:
            logits = np.concatenate([logits, np.asarray(inputs.sinks, np.float64)[:, None]], axis=-1)
        weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        out[token] = weights[:, : len(chosen)] @ chosen[:, : case.latent_size]
    return out


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("ties", [False, True])
def test_matches_numpy(implementation: str, *, ties: bool) -> None:
    """Of equal keys those that come first are seen."""
    inputs = (whole_numbers if ties else make_inputs)(MIXED)
    out, cached = run(implementation)(inputs)
    wanted = oracle(inputs, np.asarray(cached))
    np.testing.assert_allclose(out[: MIXED.num_tokens], wanted, atol=5e-6)
    assert np.isfinite(out).all()


@pytest.mark.parametrize("top", [8, 60])
def test_sinks(top: int) -> None:
    """They take part in the softmax over chosen keys, or over all keys where no request has more."""
    inputs = make_inputs(replace(MIXED, sinks=True, top=top))
    for implementation in IMPLEMENTATIONS:
        out, cached = run(implementation)(inputs)
        np.testing.assert_allclose(out[: MIXED.num_tokens], oracle(inputs, np.asarray(cached)), atol=5e-6)


@pytest.mark.parametrize("implementation", ["xla", "cpu"])
def test_up_to_so_many_keys_it_is_attention_to_all(implementation: str) -> None:
    """To the last bit for decodes in our kernel, which visits keys in the same order, in blocks of as many.

    Which products XLA joins, and so the last bits of its sums, depends on the processor.
    """
    inputs = make_inputs(replace(MIXED, top=37, page_size=16 if implementation == "cpu" else 4))
    assert inputs.batch.page_table.shape[1] * inputs.case.page_size > 37, "a page table of so many keys would settle it"
    out, cached = run(implementation)(inputs)
    wanted, _ = run(implementation, indexed=False)(replace(inputs, kv_cache=cached))
    if implementation == "cpu":
        np.testing.assert_array_equal(out[:3], wanted[:3])
    np.testing.assert_allclose(out[: MIXED.num_tokens], wanted[: MIXED.num_tokens], atol=5e-6)


@pytest.mark.parametrize("implementation", ["xla", "cpu"])
def test_a_token_does_not_depend_on_its_batch(implementation: str) -> None:
    """Each token alone, as a decode, has the bits that it has among others."""
    inputs = make_inputs(MIXED)
    out, cached = run(implementation)(inputs)
    alone = run(implementation)
    for token in (2, 9, 20, 41):
        row = int(inputs.batch.token_rows[token])
        position = inputs.batch.positions[token : token + 1]
        one = jnp.int32(1)
        batch = RaggedBatch(
            positions=position,
            token_rows=jnp.zeros(1, jnp.int32),
            query_start=jnp.array([0, 1], jnp.int32),
            kv_lens=position + 1,
            page_table=inputs.batch.page_table[row : row + 1],
            num_tokens=one,
            num_decodes=one,
            num_requests=one,
        )
        arrays = {name: getattr(inputs, name)[token : token + 1] for name in ("q_latent", "q_rope", "latent", "k_rope")}
        index = jax.tree.map(lambda each, token=token: each[token : token + 1], inputs.index)
        found, _ = alone(replace(inputs, batch=batch, kv_cache=cached, index=index, **arrays))
        np.testing.assert_array_equal(found[0], out[token])


def test_nan_stays_in_its_request() -> None:
    inputs = make_inputs(MIXED)
    assert inputs.index is not None
    bad = replace(inputs.index, query=inputs.index.query.at[2].set(jnp.nan), key=inputs.index.key.at[2].set(jnp.nan))
    out, cached = run("xla")(replace(inputs, index=bad))
    good, _ = run("xla")(inputs)
    others = np.arange(MIXED.num_tokens) != 2
    np.testing.assert_array_equal(out[: MIXED.num_tokens][others], good[: MIXED.num_tokens][others])
    assert np.isfinite(cached).all()


def test_nothing_grows_with_tokens_times_context() -> None:
    """Scores and keys are those of a block of tokens; each token has a table of the keys that it sees."""
    index: dict[str, Any] = {"index_heads": 64, "index_size": 128, "top": 2048, "latent_size": 512, "rope_size": 64}
    inputs = abstract_inputs(Case("wide", ((512, 32_000),), num_heads=16, layers=1, **index))
    memory = jax.jit(lambda inputs: inputs.call("xla", 0)).lower(inputs).compile(QUICK).memory_analysis()
    assert memory is not None
    cache = np.prod(inputs.kv_cache.shape) * 4
    # A score for every index head, query and key would be 4 GB.
    assert memory.temp_size_in_bytes - cache < 2**27


def test_the_check_of_an_implementation_has_an_index() -> None:
    """As an engine's self-test has where its model has one."""
    result = compare(MIXED, partial(run_case, "xla"))
    assert not result.is_wrong
    assert result.reason is None
