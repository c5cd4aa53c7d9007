"""Attention to lists of units, and the choice of entries, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxllm.pallas_kernels.compressed_attention import (
    EntryIndex,
    Units,
    attend_to_units,
    choose_entries,
    read_units,
    write_units,
)

TOKENS, HEADS, SIZE, UNITS = 21, 4, 8, 400


@pytest.mark.parametrize("implementation", ["xla", "cpu"])
def test_attention_with_sinks(implementation: str) -> None:
    random = np.random.default_rng(0)
    query = random.normal(size=(TOKENS, HEADS, 16)).astype(np.float32)
    units, sinks = random.normal(size=(UNITS, 16)).astype(np.float32), random.normal(size=HEADS).astype(np.float32)
    seen, counts = random.integers(0, UNITS, (TOKENS, 150)), random.integers(1, 151, TOKENS)
    lists = jnp.asarray(seen, jnp.int32), jnp.asarray(counts, jnp.int32), jnp.int32(TOKENS - 2)
    found = attend_to_units(
        jnp.asarray(query),
        jnp.asarray(units),
        *lists,
        scale=0.7,
        sinks=jnp.asarray(sinks),
        implementation=implementation,
    )
    for token in range(TOKENS - 2):
        keys = units[seen[token, : counts[token]]]
        scores = np.concatenate([query[token] @ keys.T * 0.7, sinks[:, None]], axis=1)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        wanted = weights[:, :-1] @ keys / weights.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(found[token], wanted, atol=1e-5)


@pytest.mark.parametrize("top", [3, 40])
def test_the_best_entries_are_chosen_and_of_equal_ones_the_first(top: int) -> None:
    random = np.random.default_rng(1)
    rows, entries, heads, size = 3, 130, 2, 12
    keys = random.permutation(UNITS - 2)[: rows * entries].reshape(rows, entries)
    # Small integers: many scores are equal, and sums exact.
    units = random.integers(-1, 2, (UNITS, SIZE)).astype(np.float32)
    query = random.integers(-2, 3, (TOKENS, heads, size)).astype(np.float32)
    weights = random.integers(-2, 3, (TOKENS, heads)).astype(np.float32)
    of, visible = random.integers(0, rows, TOKENS), random.integers(0, entries + 1, TOKENS)
    index = EntryIndex(jnp.asarray(query), jnp.asarray(weights))
    own = jnp.asarray(keys, jnp.int32), jnp.asarray(of, jnp.int32), jnp.asarray(visible, jnp.int32)
    found = choose_entries(index, jnp.asarray(units), *own, jnp.int32(TOKENS), top)
    for token, chosen in enumerate(np.asarray(found)):
        stored = np.stack([np.concatenate([units[at], units[at + 1]])[:size] for at in keys[of[token]]])
        scores = (np.maximum(query[token] @ stored.T, 0) * weights[token][:, None]).sum(axis=0)[: visible[token]]
        wanted = np.sort(np.argsort(-scores, kind="stable")[:top])
        np.testing.assert_array_equal(chosen[: len(wanted)], wanted)


def test_what_is_written_is_read_and_the_rest_stays() -> None:
    table = jnp.asarray([[7, 4, 9], [2, 11, 0]], jnp.int32)
    pages = Units(table, jnp.int32(72), page_units=24, shares=3, size=2)
    rows, columns, slots = (jnp.asarray(each, jnp.int32) for each in ([0, 1, 1], [2, 0, 1], [3, 0, 1]))
    first = pages.places(rows, columns, slots)
    # Page 9 // 3, part 9 % 3 of 8 units each, slot 3 of 2 units; and so on.
    np.testing.assert_array_equal(first, [72 + 3 * 24 + 0 + 6, 72 + 0 + 16 + 0, 72 + 3 * 24 + 16 + 2])
    units, new = jnp.ones((200, 4)), jnp.arange(24, dtype=jnp.float32).reshape(3, 8).at[0, 0].set(jnp.nan)
    written = jax.jit(write_units)(units, first.at[2].set(200), new)
    np.testing.assert_array_equal(read_units(written, first[:2], 2), new[:2].at[0, 0].set(0))
    assert int((written == 1).all(axis=1).sum()) == 200 - 4
