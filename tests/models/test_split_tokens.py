"""A residual stream that is split by tokens gives what a whole one gives, and really is split."""

import dataclasses
import re
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxllm.models import sharding
from jaxllm.models.cache import Cache
from jaxllm.models.causal_lm import load_model
from jaxllm.models.checkpoint.random_weights import RandomWeights
from jaxllm.models.layers import ring_mlp
from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import make_mesh, split_kv_heads, token_axis
from jaxllm.pallas_kernels.paged_attention import CacheGeometry, cache_shape
from tests.models import paged, small
from tests.thinned import thinned

TOKENS = 32
SIZES = thinned([4], [2, 8])
MODEL = dataclasses.replace(small.MODEL, num_heads=8, head_size=4, hidden_size=32, intermediate_size=48)
PROMPTS = [list(range(1, 13)), list(range(5, 20))]
COLLECTIVE = re.compile(r" (all-reduce|all-gather|reduce-scatter|collective-permute)(?:-start)?\(")


def logits(devices: int) -> tuple[np.ndarray, Counter[str]]:
    """Those of two prompts on so many devices, and the collectives of the program."""
    mesh = None if devices == 1 else make_mesh(jax.devices(), devices)
    options = ForwardOptions(stack="scan", mesh=mesh)
    model = load_model(RandomWeights(1), MODEL, options, "float32")
    heads = split_kv_heads(MODEL.num_kv_heads, devices)
    geometry = CacheGeometry(2, paged.NUM_PAGES, paged.PAGE_SIZE, heads, MODEL.head_size, "float32")
    pages = jnp.zeros(cache_shape("xla", geometry), device=sharding.sharding(mesh, None, None, None, "kv_heads"))
    cache = Cache((pages,))
    batch = paged.make_batch(PROMPTS, [0, 0], paged.shuffled_pages(2), TOKENS)
    state, step = paged.compiled_step(model)
    program = step.lower(state, batch, cache).compile()  # type: ignore[attr-defined]
    out, _ = program(state, batch, cache)
    return np.asarray(out)[: sum(map(len, PROMPTS)), : MODEL.vocab_size], Counter(COLLECTIVE.findall(program.as_text()))


@pytest.fixture(scope="module")
def whole() -> np.ndarray:
    """The output of one device."""
    return logits(1)[0]


def test_small_steps_are_whole() -> None:
    mesh = make_mesh(jax.devices(), 4)
    assert [token_axis(mesh, tokens) for tokens in (128, 256, 258, 2048)] == [None, "tokens", None, "tokens"]
    assert token_axis(None, 2048) is None


@pytest.mark.parametrize("devices", SIZES)
def test_tokens_are_gathered_and_scattered(whole: np.ndarray, devices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharding, "FEWEST_SPLIT_TOKENS", TOKENS)
    found, collectives = logits(devices)
    np.testing.assert_allclose(found, whole, atol=2e-5)
    # Before each of the two products of a layer, and at the end.
    assert collectives["all-gather"] >= 3
    assert collectives["collective-permute"] == 0


@pytest.mark.parametrize("devices", SIZES)
def test_tokens_go_around_the_ring(whole: np.ndarray, devices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharding, "FEWEST_SPLIT_TOKENS", TOKENS)
    monkeypatch.setattr(ring_mlp, "FEWEST_ROWS", 2)
    found, collectives = logits(devices)
    np.testing.assert_allclose(found, whole, atol=2e-5)
    # Tokens and sums, in both directions, one round fewer than there are devices; in the body of the scan.
    assert collectives["collective-permute"] == 4 * (devices - 1)
