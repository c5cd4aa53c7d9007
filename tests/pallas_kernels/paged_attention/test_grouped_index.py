"""Attention to the groups of keys that an index chooses for all heads: against numpy, and alone and together."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from jaxllm.pallas_kernels.paged_attention import GroupIndex
from jaxllm.pallas_kernels.paged_attention.inputs import LAYER, Inputs
from tests.pallas_kernels.paged_attention.test_indexed import HEADS, KV_HEADS, MIXED, SIZE, make, run

INDEX_HEADS, EPS, FREQUENCIES, FACTOR = 3, 1e-3, (1.0, 0.3), 1.25


def make_grouped(page_size: int, block: int, top: int) -> tuple[Inputs, GroupIndex]:
    """A case and its index."""
    inputs, other = make(page_size, block=block)
    rng = np.random.default_rng(2)
    query = rng.standard_normal((len(inputs.q), INDEX_HEADS, SIZE), np.float32)
    norm = 1 + 0.3 * rng.standard_normal(SIZE, np.float32)
    return inputs, GroupIndex(jnp.array(query), other.key, jnp.array(norm), block, top, EPS, FREQUENCIES, FACTOR)


def group_key(index: GroupIndex, keys: np.ndarray, start: int) -> np.ndarray:
    """The key of a group, from those of its tokens [block, I]."""
    mean = keys.mean(axis=0)
    made = mean / np.sqrt((mean**2).mean() + EPS) * np.asarray(index.norm, np.float64)
    for pair, frequency in enumerate(FREQUENCIES):
        places = [pair, SIZE // 2 + pair]
        cos, sin = FACTOR * np.cos(start * frequency), FACTOR * np.sin(start * frequency)
        made[places] = np.array([[cos, -sin], [sin, cos]]) @ made[places]
    return made


def oracle(inputs: Inputs, index: GroupIndex, cached: np.ndarray) -> np.ndarray:
    """The result of every token by the formula; `cached` is the cache that was returned."""
    batch, size, block = inputs.batch, inputs.q.shape[2], index.block
    out = np.zeros((inputs.case.num_tokens, HEADS, size))
    for token in range(len(out)):
        table, position = np.asarray(batch.page_table[batch.token_rows[token]]), int(batch.positions[token])
        stored = cached[LAYER, table].reshape(-1, *cached.shape[3:])[: position + 1].astype(np.float64)
        complete = (position + 1) // block
        keys = stored[:, 2 * KV_HEADS, :SIZE]
        made = [group_key(index, keys[at * block : (at + 1) * block], at * block) for at in range(complete)]
        query = np.asarray(index.query[token], np.float64)
        scores = np.array([np.maximum(query @ key, 0).sum() for key in made])
        chosen = [*np.argsort(-scores, kind="stable")[: index.top], complete]
        seen = np.isin(np.arange(position + 1) // block, chosen)
        for head in range(HEADS):
            own = head * KV_HEADS // HEADS
            logits = stored[seen, 2 * own] @ np.asarray(inputs.q[token, head], np.float64) * inputs.case.scale
            weights = np.exp(logits - logits.max())
            out[token, head] = weights / weights.sum() @ stored[seen, 2 * own + 1]
    return out


@pytest.mark.parametrize(("implementation", "page_size", "block"), [("reference", 4, 3), ("xla", 4, 3), ("xla", 8, 2)])
def test_matches_numpy(implementation: str, page_size: int, block: int) -> None:
    inputs, index = make_grouped(page_size, block, 3)
    out, cached = run(implementation)(inputs, index)
    wanted = oracle(inputs, index, np.asarray(cached))
    np.testing.assert_allclose(out[: len(wanted)], wanted, atol=5e-6)
    assert np.isfinite(out).all()


def test_up_to_so_many_groups_it_is_attention_to_all() -> None:
    inputs, index = make_grouped(4, 4, 9)
    out, cached = run("xla")(inputs, index)
    wanted, _ = run("xla")(replace(inputs, kv_cache=cached), None)
    np.testing.assert_allclose(out[: MIXED.num_tokens], wanted[: MIXED.num_tokens], atol=5e-6)
