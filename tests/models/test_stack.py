"""The two stacks: what they accept, and that neither copies the KV cache."""

import dataclasses
import functools
from typing import Any, Literal, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from jaxllm.models.cache import Cache
from jaxllm.models.causal_lm import abstract_model, load_model
from jaxllm.models.checkpoint.random_weights import RandomWeights
from jaxllm.models.errors import ModelError
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.options import ForwardOptions
from jaxllm.models.pattern import segments_of
from jaxllm.models.stack import ScanStack
from jaxllm.pallas_kernels.paged_attention import CacheGeometry, cache_shape
from tests.models import small
from tests.models.paged import compiled_step, empty_cache, make_batch, shuffled_pages
from tests.quick import QUICK
from tests.thinned import thinned

Kind = Literal["loop", "scan"]

PATTERNS = {
    "five windows to one without": ((4, 4, 4, 4, 4, 0) * 4, [6], [4]),
    "and two more": ((4, 4, 4, 4, 4, 0) * 4 + (4, 4), [6, 1], [4, 2]),
    "all alike": ((4,) * 5, [1], [5]),
    "one unlike the others": ((0, 4, 4, 4), [1, 1], [1, 3]),
    "no pattern": ((1, 2, 3), [3], [1]),
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_segments(pattern: str) -> None:
    windows, periods, repeats = PATTERNS[pattern]
    segments = segments_of(windows)
    assert [segment.period for segment in segments] == periods
    assert [segment.repeats for segment in segments] == repeats


@given(st.lists(st.integers(0, 2), max_size=40))
def test_segments_cover_all_layers_once(plans: list[int]) -> None:
    segments = segments_of(plans)
    layers = [segment.layers(place) for segment in segments for place in range(segment.period)]
    assert sorted(layer for each in layers for layer in each) == list(range(len(plans)))
    assert all(len({plans[layer] for layer in each}) == 1 for each in layers)


def test_segments_of_a_deep_model() -> None:
    assert len(segments_of([number % 3 for number in range(2000)])) == 2


def test_layers_of_unequal_structure_are_scanned() -> None:
    """Windows, biases and positions that come and go: the same logits from both stacks, and two layers are built."""
    one, other = small.MODEL.layers[0].attending(window=3, qkv_bias=True), small.MODEL.layers[0].attending(rope=None)
    config = dataclasses.replace(small.MODEL, layers=(one, other) * 3)
    batch = make_batch([[3, 1, 4, 1, 5], [9, 2]], [0, 0], shuffled_pages(2), 8)
    kinds: tuple[Kind, ...] = ("loop", "scan")
    models = [load_model(RandomWeights(), config, ForwardOptions(stack=kind), "float32") for kind in kinds]
    steps = [(model, *compiled_step(model)) for model in models]
    looped, scanned = (np.asarray(step(state, batch, empty_cache(model))[0])[:7] for model, state, step in steps)
    np.testing.assert_allclose(looped, scanned, atol=1e-5)
    stack = models[1].layers
    assert isinstance(stack, ScanStack)
    assert list(stack.all) == ["0:6:2", "1:6:2"]


def test_unknown_stack_and_activation() -> None:
    with pytest.raises(ModelError, match=r"unknown layer stack 'fold' \(known: loop, scan\)"):
        abstract_model(small.MODEL, ForwardOptions(stack=cast(Any, "fold")), "float32")
    strange = small.alike(small.MODEL, activation="gelu_tanh_pytorch")
    with pytest.raises(ModelError, match=r"unknown activation 'gelu_tanh_pytorch'; did you mean 'gelu_pytorch_tanh'"):
        abstract_model(strange, ForwardOptions(), "float32")


def test_an_abstract_model_takes_no_memory() -> None:
    config = dataclasses.replace(small.MODEL, vocab_size=10**9, hidden_size=10**6)
    leaves = jax.tree.leaves(nnx.split(abstract_model(config, ForwardOptions(stack="scan"), "bfloat16"))[1])
    assert sum(leaf.size for leaf in leaves) > 10**15
    assert {leaf.dtype.name for leaf in leaves} == {"bfloat16"}


def test_windows_longer_than_any_request_are_dropped() -> None:
    config = small.MODEL.with_windows((64, 10))
    for length, expected in ((64, (0, 10)), (65, (64, 10)), (10, (0, 0))):
        model = abstract_model(config, ForwardOptions(max_model_len=length), "float32")
        assert tuple(plan.attention.window for plan in model.layers.plans) == expected


@functools.cache
def logits_of_a_step(dtype: str, kind: Kind) -> np.ndarray:
    """Logits of the tokens of two rows, from dummy weights."""
    config = small.alike(small.MODEL, qkv_bias=True, norm=NormPlan(), bias=True)
    batch = make_batch([[3, 1, 4, 1, 5], [9, 2]], [0, 0], shuffled_pages(2), 8)
    model = load_model(RandomWeights(), config, ForwardOptions(stack=kind), dtype)
    state, step = compiled_step(model)
    found, cache = step(state, batch, empty_cache(model, dtype))
    assert found.dtype == jnp.float32
    assert cache.pages[0].dtype == dtype
    return np.asarray(found)[:7]


@pytest.mark.parametrize("kind", ["loop", "scan"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_type_computes(dtype: str, kind: Kind) -> None:
    logits = logits_of_a_step(dtype, kind)
    assert np.isfinite(logits).all()
    np.testing.assert_allclose(logits, logits_of_a_step("float32", kind), atol=0.1)


@pytest.mark.parametrize(
    ("kind", "tokens"),
    thinned([("loop", 1), ("loop", 8), ("scan", 1), ("scan", 8)], [("loop", 2), ("scan", 2)]),
)
def test_the_cache_is_not_copied(kind: Kind, tokens: int) -> None:
    """On CPU both stacks update a donated cache in place.

    The scan's temporaries may hold the weights of one layer, which XLA's CPU compiler copies out of the stack on each
    trip; that is why the loop is the default there.
    """
    config = small.alike(small.MODEL, layers=4)
    model = abstract_model(config, ForwardOptions(stack=kind), "float32")
    graph, state = nnx.split(model)
    cache: Any = jax.ShapeDtypeStruct(cache_shape("xla", CacheGeometry(4, 20_000, 16, 2, 4, "float32")), jnp.float32)

    def step(state: Any, batch: Any, cache: Cache) -> tuple[jax.Array, Cache]:
        model = nnx.merge(graph, state)
        hidden, cache = model(batch, cache)
        return model.logits(hidden), cache

    batch = make_batch([[1] * tokens], [0], shuffled_pages(1), tokens)
    # What is compiled quickly has the same buffers: the level says what LLVM does, after they are laid out.
    compiled = jax.jit(step, donate_argnums=2).lower(state, batch, Cache((cache,))).compile(QUICK)
    memory = cast(Any, compiled.memory_analysis())
    cache_bytes = cache.size * 4
    assert memory.alias_size_in_bytes >= cache_bytes
    assert memory.temp_size_in_bytes < cache_bytes / 50


def test_scan_keeps_one_copy_of_the_structure() -> None:
    model = abstract_model(small.MODEL, ForwardOptions(stack="scan"), "float32")
    assert isinstance(model.layers, ScanStack)
    assert jax.tree.leaves(nnx.split(model.layers)[1])[0].shape[0] == len(small.MODEL.windows)
