"""Log-probabilities against torch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

from jaxllm.executor.sampler.logprobs import gather_logprobs, listed_logprobs
from jaxllm.executor.sampler.logprobs_mode import drawn_logits
from jaxllm.pallas_kernels.sampling import Choice


@pytest.mark.parametrize(
    ("num_top", "vocab"), [(0, 200), (1, 200), (7, 200), (200, 200), (0, 7001), (1, 7001), (20, 7001)]
)
def test_equal_to_torch(num_top: int, vocab: int) -> None:
    random = np.random.default_rng(4)
    logits = (random.normal(size=(9, vocab)) * 5).astype(np.float32)
    logits[0, 50:] = -np.inf
    token_ids = random.integers(0, vocab, 9).astype(np.int32)
    token_ids[0] = 3
    found = jax.jit(gather_logprobs, static_argnums=2)(jnp.asarray(logits), jnp.asarray(token_ids), num_top)

    wanted = torch.log_softmax(torch.tensor(logits), dim=-1)
    chosen = wanted.gather(1, torch.tensor(token_ids)[:, None].long())
    np.testing.assert_allclose(found.logprob, chosen[:, 0].numpy(), atol=1e-5)
    np.testing.assert_array_equal(found.rank, 1 + (wanted > chosen).sum(1).numpy())
    top = wanted.topk(num_top)
    np.testing.assert_allclose(found.top_logprobs, top.values.numpy(), atol=1e-5)
    np.testing.assert_array_equal(found.top_ids[1:], top.indices.numpy()[1:])


def test_listed_tokens_equal_to_torch() -> None:
    random = np.random.default_rng(5)
    logits = (random.normal(size=(7, 500)) * 5).astype(np.float32)
    logits[0, 50:] = -np.inf
    token_ids = random.integers(0, 500, (7, 12)).astype(np.int32)
    token_ids[0, :3] = (0, 49, 499)
    found = jax.jit(listed_logprobs)(jnp.asarray(logits), jnp.asarray(token_ids))
    wanted = torch.log_softmax(torch.tensor(logits), dim=-1).gather(1, torch.tensor(token_ids).long())
    np.testing.assert_allclose(found, wanted.numpy(), atol=1e-5)
    assert np.isneginf(found[0, 2])


def test_the_most_likely_token_has_rank_one_even_in_a_tie() -> None:
    found = gather_logprobs(jnp.array([[1.0, 3.0, 3.0]]), jnp.array([2]), 1)
    assert int(found.rank[0]) == 1


def test_logits_without_softmax() -> None:
    logits = jnp.asarray(np.random.default_rng(6).normal(size=(3, 90)), jnp.float32)
    token_ids = jnp.array([5, 6, 7])
    found = gather_logprobs(logits, token_ids, 2, normalized=False)
    np.testing.assert_array_equal(found.logprob, logits[np.arange(3), token_ids])
    np.testing.assert_array_equal(found.top_logprobs, np.sort(logits, axis=1)[:, ::-1][:, :2])
    listed = listed_logprobs(logits, token_ids[:, None], normalized=False)
    np.testing.assert_array_equal(listed[:, 0], found.logprob)


def test_what_tokens_are_drawn_from_equals_the_filters_of_transformers() -> None:
    random = np.random.default_rng(7)
    logits = (random.normal(size=(5, 300)) * 3).astype(np.float32)
    settings = [(0.0, 3, 0.5, 0.1), (0.7, 0, 1.0, 0.0), (1.3, 20, 1.0, 0.0), (0.9, 0, 0.8, 0.0), (1.1, 0, 1.0, 0.05)]
    temperature, top_k, top_p, min_p = (jnp.asarray(each) for each in zip(*settings, strict=True))
    choice = Choice(temperature, top_k, top_p, min_p, jnp.zeros((5, 2)))
    found = np.asarray(jax.jit(drawn_logits)(jnp.asarray(logits), choice))
    for row, (divisor, k, p, least) in enumerate(settings):
        wanted = torch.tensor(logits[row : row + 1])
        if divisor:
            wanted = transformers.TemperatureLogitsWarper(divisor)(None, wanted)
            if k:
                wanted = transformers.TopKLogitsWarper(k)(None, wanted)
            if p < 1:
                wanted = transformers.TopPLogitsWarper(p)(None, wanted)
            if least:
                wanted = transformers.MinPLogitsWarper(least)(None, wanted)
        np.testing.assert_allclose(found[row], wanted[0].numpy(), rtol=1e-5)
