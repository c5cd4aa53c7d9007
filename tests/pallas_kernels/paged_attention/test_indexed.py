"""Attention to the blocks of keys that an index chooses: against numpy, to as many as there are, alone and together."""

from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxllm.pallas_kernels.cpu_common.processor import host_processor
from jaxllm.pallas_kernels.paged_attention import BlockIndex, get_backend, paged_attention
from jaxllm.pallas_kernels.paged_attention.inputs import LAYER, Case, Inputs, make_inputs
from jaxllm.pallas_kernels.ragged_batch import RaggedBatch

HEADS, KV_HEADS, SIZE = 4, 2, 16
ROWS = ((1, 5), (1, 0), (1, 33), (7, 0), (30, 3), (3, 29))
# The last head is that of the index.
MIXED = Case("mixed", ROWS, num_heads=6, num_kv_heads=KV_HEADS + 1, head_size=24, padding_tokens=5, padding_rows=3)
Made = tuple[Inputs, BlockIndex]


def make(page_size: int = 4, *, block: int = 4, top: int = 3, local: int = 1, whole: bool = False, **case: Any) -> Made:
    """A case and its index; with `whole` numbers scores are exact, and many of them equal."""
    inputs = make_inputs(replace(MIXED, page_size=page_size, **case))
    rng = np.random.default_rng(1)
    query, key = (rng.standard_normal((len(inputs.q), *shape), np.float32) for shape in ((KV_HEADS, SIZE), (SIZE,)))
    own = inputs.kv_cache[..., 2 * KV_HEADS, :]
    if whole:
        query, key, own = np.round(query), np.round(key), jnp.round(own)
    cached = inputs.kv_cache.at[..., 2 * KV_HEADS, :].set(own)
    k, v = inputs.k[:, :KV_HEADS], inputs.v[:, :KV_HEADS]
    made = replace(inputs, q=inputs.q[:, :HEADS], k=k, v=v, kv_cache=cached)
    return made, BlockIndex(jnp.array(query), jnp.array(key), block, top, local)


@cache
def run(implementation: str) -> Any:
    """A compiled call, from and to the canonical cache; without an index to all keys."""

    def call(inputs: Inputs, index: BlockIndex | None) -> tuple[jax.Array, jax.Array]:
        backend = get_backend(implementation)
        arrays = inputs.q, inputs.k, inputs.v, backend.from_canonical(inputs.kv_cache, inputs.case.scale_bytes)
        out, cached = paged_attention(
            *arrays, LAYER, inputs.batch, inputs.options, index=index, implementation=implementation
        )
        return out, backend.to_canonical(cached, inputs.case.page_size, inputs.case.scale_bytes)

    return jax.jit(call)


def oracle(inputs: Inputs, index: BlockIndex, cached: np.ndarray) -> np.ndarray:
    """The result of every token by the formula, with a stable sort; `cached` is the cache that was returned."""
    batch, size = inputs.batch, inputs.q.shape[2]
    out = np.zeros((inputs.case.num_tokens, HEADS, size))
    for token in range(len(out)):
        table, position = np.asarray(batch.page_table[batch.token_rows[token]]), int(batch.positions[token])
        stored = cached[LAYER, table].reshape(-1, *cached.shape[3:])[: position + 1].astype(np.float64)
        last = position // index.block
        for head in range(KV_HEADS):
            products = stored[:, 2 * KV_HEADS, :SIZE] @ np.asarray(index.query[token, head], np.float64)
            starts = range(0, position + 1, index.block)
            scores = np.array([products[start : start + index.block].max() for start in starts])
            scores[max(last - index.local + 1, 0) : last + 1 if index.local else 0] = np.inf
            chosen = np.argsort(-scores, kind="stable")[: index.top]
            seen = np.isin(np.arange(position + 1) // index.block, chosen)
            keys, values = stored[seen, 2 * head], stored[seen, 2 * head + 1]
            group = slice(head * HEADS // KV_HEADS, (head + 1) * HEADS // KV_HEADS)
            logits = np.asarray(inputs.q[token, group], np.float64) @ keys.T * inputs.case.scale
            weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
            out[token, group] = weights / weights.sum(axis=-1, keepdims=True) @ values
    return out


CASES = {
    "blocks of pages": partial(make, 4, block=4, whole=True),
    "blocks across pages, two of them local": partial(make, 4, block=6, local=2),
    "blocks within pages, none of them local": partial(make, 8, block=2, local=0, whole=True),
}
LONG = ((1, 90), (1, 0), (1, 233), (7, 40), (40, 3), (3, 130))
# Whole vectors. Whole numbers have many equal blocks.
FOR_CPU = {
    "blocks of pages": partial(make, 16, block=32, whole=True, rows=LONG, head_size=32),
    "blocks across pages, two of them local": partial(make, 32, block=48, local=2, rows=LONG, head_size=48),
    "blocks within pages, none of them local": partial(make, 64, block=16, local=0, rows=LONG, head_size=32),
}


@pytest.mark.parametrize("implementation", ["reference", "xla"])
@pytest.mark.parametrize("name", CASES)
def test_matches_numpy(implementation: str, name: str) -> None:
    """Of equal blocks those that come first are seen."""
    inputs, index = CASES[name]()
    out, cached = run(implementation)(inputs, index)
    wanted = oracle(inputs, index, np.asarray(cached))
    np.testing.assert_allclose(out[: len(wanted)], wanted, atol=5e-6)
    assert np.isfinite(out).all()


@pytest.mark.parametrize("name", FOR_CPU)
def test_the_kernel_for_cpus_matches_numpy(name: str) -> None:
    inputs, index = FOR_CPU[name]()
    out, cached = run("cpu")(inputs, index)
    wanted = oracle(inputs, index, np.asarray(cached))
    np.testing.assert_allclose(out[: len(wanted)], wanted, atol=5e-6)
    assert np.isfinite(out).all()


@pytest.mark.skipif(not host_processor().multiplies_bfloat16, reason="the processor has no AVX512-BF16")
def test_pairs_of_bfloat16_match_the_kernel_without() -> None:
    """Whole numbers are scored alike, so both see the same blocks."""
    inputs, index = make(16, block=32, whole=True, rows=LONG, head_size=32, dtype="bfloat16")
    (out, cached), (wanted, same) = (run(name)(inputs, index) for name in ("cpu_pairs", "cpu"))
    count = inputs.case.num_tokens
    np.testing.assert_allclose(out[:count].astype(float), wanted[:count].astype(float), atol=3e-2)
    np.testing.assert_array_equal(cached[:, 1:].astype(float), same[:, 1:].astype(float))


def test_up_to_so_many_blocks_it_is_attention_to_all() -> None:
    inputs, index = make(top=9)
    assert inputs.batch.page_table.shape[1] > 9, "a page table of so many keys would settle it"
    out, cached = run("xla")(inputs, index)
    wanted, _ = run("xla")(replace(inputs, kv_cache=cached), None)
    np.testing.assert_allclose(out[: MIXED.num_tokens], wanted[: MIXED.num_tokens], atol=5e-6)


@pytest.mark.parametrize("implementation", ["xla", "cpu"])
def test_keys_with_scales(implementation: str) -> None:
    """Keys, values and those of the index have scales of their own in the cache."""
    inputs, index = make(16, block=16, head_size=32, scale_bytes=4, kv_dtype="int8", rows=LONG)
    out, cached = run(implementation)(inputs, index)
    wanted, same = run("reference")(inputs, index)
    np.testing.assert_allclose(out[: inputs.case.num_tokens], wanted[: inputs.case.num_tokens], atol=2e-5)
    np.testing.assert_array_equal(cached[:, 1:], same[:, 1:])


@pytest.mark.parametrize("implementation", ["xla", "cpu"])
def test_a_token_does_not_depend_on_its_batch(implementation: str) -> None:
    """Each token alone, as a decode, has the bits that it has among others."""
    inputs, index = make(16, block=16, head_size=32, rows=LONG)
    out, cached = run(implementation)(inputs, index)
    for token in (2, 9, 51):
        row, position = int(inputs.batch.token_rows[token]), inputs.batch.positions[token : token + 1]
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
        arrays = {name: getattr(inputs, name)[token : token + 1] for name in "qkv"}
        own = jax.tree.map(lambda each, token=token: each[token : token + 1], index)
        found, _ = run(implementation)(replace(inputs, batch=batch, kv_cache=cached, **arrays), own)
        np.testing.assert_array_equal(found[0], out[token])


@pytest.mark.parametrize("implementation", ["xla", "cpu"])
def test_nan_stays_in_its_request(implementation: str) -> None:
    inputs, index = make(16, block=16, head_size=32, rows=LONG)
    bad = replace(index, query=index.query.at[2].set(jnp.nan), key=index.key.at[2].set(jnp.nan))
    out, cached = run(implementation)(inputs, bad)
    good, _ = run(implementation)(inputs, index)
    others = np.arange(inputs.case.num_tokens) != 2
    np.testing.assert_array_equal(out[: len(others)][others], good[: len(others)][others])
    assert np.isfinite(cached).all()


def test_kernels_without_an_index_refuse_it() -> None:
    inputs, index = make()
    with pytest.raises(NotImplementedError, match="'tpu': keys that an index chooses"):
        paged_attention(
            inputs.q,
            inputs.k,
            inputs.v,
            inputs.kv_cache,
            LAYER,
            inputs.batch,
            inputs.options,
            index=index,
            implementation="tpu",
        )
