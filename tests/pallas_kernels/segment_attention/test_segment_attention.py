"""Both implementations against torch's attention, text by text; a text's result does not depend on its neighbours."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxllm.pallas_kernels.segment_attention.api import segment_attention
from jaxllm.pallas_kernels.segment_attention.relative import RelativeScores
from jaxllm.pallas_kernels.segment_attention.segments import Segments
from tests.quick import QUICK

TOKENS, ROWS, HEADS, SIZE = 320, 8, 3, 16
_attend = jax.jit(
    segment_attention,
    static_argnames=("scale", "window", "implementation"),
    compiler_options=QUICK,
)


def _segments(lengths: list[int]) -> Segments:
    starts = np.full(ROWS + 1, sum(lengths), np.int32)
    starts[: len(lengths) + 1] = np.cumsum([0, *lengths])
    rows = np.zeros(TOKENS, np.int32)
    rows[: sum(lengths)] = np.repeat(np.arange(len(lengths)), lengths)
    counts = jnp.int32(sum(lengths)), jnp.int32(len(lengths))
    return Segments(jnp.asarray(starts), jnp.asarray(rows), *counts)


def _operands(seed: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(seed)
    return tuple(random.normal(size=(TOKENS, HEADS, SIZE)).astype(np.float32) for _ in range(3))


def _oracle(q: np.ndarray, k: np.ndarray, v: np.ndarray, window: int | None) -> np.ndarray:
    place = torch.arange(len(q))
    mask = None if window is None else (place[:, None] - place).abs() <= window
    heads = (torch.tensor(each).transpose(0, 1) for each in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(*heads, attn_mask=mask, scale=0.25)
    return out.transpose(0, 1).numpy()


CASES = [[320], [1], [64, 128, 1, 63], [129, 127, 64], [1, 1, 1, 5, 200], [3, 4, 5, 6, 7, 8, 9, 10]]


@pytest.mark.parametrize("implementation", ["reference", "xla"])
@pytest.mark.parametrize("window", [None, 7])
def test_equals_torch(implementation: str, window: int | None) -> None:
    q, k, v = _operands(0)
    for lengths in CASES:
        _check(q, k, v, lengths, implementation, window)


def _check(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, lengths: list[int], implementation: str, window: int | None
) -> None:
    out = np.asarray(_attend(q, k, v, _segments(lengths), scale=0.25, window=window, implementation=implementation))
    assert np.isfinite(out).all()
    begin = 0
    for length in lengths:
        part = slice(begin, begin + length)
        np.testing.assert_allclose(out[part], _oracle(q[part], k[part], v[part], window), atol=2e-5, rtol=0)
        begin += length


@pytest.mark.parametrize("implementation", ["reference", "xla"])
@pytest.mark.parametrize("parts", ["both", "by_query", "by_key"])
def test_scores_by_distance(implementation: str, parts: str) -> None:
    """As a bias that torch adds; distances beyond the buckets' count as the farthest of them."""
    random, reach = np.random.default_rng(3), 40
    q, k, v = _operands(0)
    by_query, by_key = (random.normal(size=(TOKENS, HEADS, 6)).astype(np.float32) for _ in range(2))
    by_query, by_key = by_query * (parts != "by_key"), by_key * (parts != "by_query")
    buckets = random.integers(0, 6, 2 * reach + 1).astype(np.int32)
    relative = RelativeScores(
        None if parts == "by_key" else jnp.asarray(by_query),
        None if parts == "by_query" else jnp.asarray(by_key),
        jnp.asarray(buckets),
    )
    lengths = [129, 1, 64, 100]
    out = np.asarray(_attend(q, k, v, _segments(lengths), scale=0.25, relative=relative, implementation=implementation))
    begin = 0
    for length in lengths:
        part, place = slice(begin, begin + length), np.arange(length)
        bucket = buckets[np.clip(place[:, None] - place, -reach, reach) + reach]
        added = np.take_along_axis(by_query[part].transpose(1, 0, 2), bucket[None], axis=2)
        added = added + np.take_along_axis(by_key[part].transpose(1, 0, 2), bucket.T[None], axis=2).transpose(0, 2, 1)
        heads = (torch.tensor(each[part]).transpose(0, 1) for each in (q, k, v))
        bias = torch.tensor(added * 0.25)
        wanted = torch.nn.functional.scaled_dot_product_attention(*heads, attn_mask=bias, scale=0.25)
        np.testing.assert_allclose(out[part], wanted.transpose(0, 1).numpy(), atol=2e-5, rtol=0)
        begin += length


@settings(max_examples=25)
@given(st.lists(st.integers(1, 90), min_size=1, max_size=6).filter(lambda each: sum(each) <= 220))
def test_neighbours_change_no_bit(before: list[int]) -> None:
    q, k, v = _operands(1)
    own = [np.asarray(each[:97]) for each in (q, k, v)]
    alone = np.zeros((3, TOKENS, HEADS, SIZE), np.float32)
    alone[:, :97] = own
    wanted = np.asarray(_attend(*alone, _segments([97]), scale=0.25))[:97]
    first = sum(before)
    together = np.stack(_operands(2))
    together[:, first : first + 97] = own
    found = np.asarray(_attend(*together, _segments([*before, 97]), scale=0.25))
    assert (found[first : first + 97] == wanted).all()
