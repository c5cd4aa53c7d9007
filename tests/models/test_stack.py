"""The two stacks: what they accept, and that neither copies the KV cache."""

import dataclasses
import functools
from pathlib import Path
from typing import Any, Literal, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxllm.models.causal_lm import abstract_model, load_model
from jaxllm.models.config import ModelConfig
from jaxllm.models.errors import ModelError
from jaxllm.models.families import registry
from jaxllm.models.families.family import Family
from jaxllm.models.layers.decoder import DecoderLayer
from jaxllm.models.options import ForwardOptions
from jaxllm.models.stack import ScanStack
from jaxllm.pallas_kernels.paged_attention import CacheGeometry, cache_shape
from tests.models import small
from tests.models.paged import compiled_step, empty_cache, make_batch, shuffled_pages

Kind = Literal["loop", "scan"]
# What is compiled quickly has the same buffers: the level says what LLVM does, after they are laid out.
QUICK: dict[str, str | bool] = {"xla_backend_optimization_level": "0"}


class Deeper(DecoderLayer):
    """A layer whose feed-forward width grows with depth."""

    def __init__(self, config: ModelConfig, options: ForwardOptions, layer: int, dtype: jnp.dtype) -> None:
        wider = dataclasses.replace(config, intermediate_size=config.intermediate_size + layer)
        super().__init__(wider, options, layer, dtype)


class Labelled(DecoderLayer):
    """A layer that differs from its neighbours in what it does, not in its parameters."""

    def __init__(self, config: ModelConfig, options: ForwardOptions, layer: int, dtype: jnp.dtype) -> None:
        super().__init__(config, options, layer, dtype)
        self.is_even = layer % 2 == 0


@pytest.mark.parametrize("layer", [Deeper, Labelled])
def test_layers_that_differ_cannot_be_scanned(layer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_FAMILIES", {"LlamaForCausalLM": Family(cast(Any, None), make_layer=layer)})
    abstract_model(small.MODEL, ForwardOptions(stack="loop"), "float32")
    with pytest.raises(ModelError, match="layer 1 is built unlike layer 0, so the layers cannot be scanned"):
        abstract_model(small.MODEL, ForwardOptions(stack="scan"), "float32")


def test_unknown_stack_and_activation() -> None:
    with pytest.raises(ModelError, match=r"unknown layer stack 'fold' \(known: loop, scan\)"):
        abstract_model(small.MODEL, ForwardOptions(stack=cast(Any, "fold")), "float32")
    strange = dataclasses.replace(small.MODEL, activation="gelu_tanh_pytorch")
    with pytest.raises(ModelError, match=r"unknown activation 'gelu_tanh_pytorch'; did you mean 'gelu_pytorch_tanh'"):
        abstract_model(strange, ForwardOptions(), "float32")


def test_an_abstract_model_takes_no_memory() -> None:
    config = dataclasses.replace(small.MODEL, vocab_size=10**9, hidden_size=10**6, windows=(0,) * 2)
    leaves = jax.tree.leaves(nnx.split(abstract_model(config, ForwardOptions(stack="scan"), "bfloat16"))[1])
    assert sum(leaf.size for leaf in leaves) > 10**15
    assert {leaf.dtype.name for leaf in leaves} == {"bfloat16"}


def test_windows_longer_than_any_request_are_dropped() -> None:
    config = dataclasses.replace(small.MODEL, windows=(64, 10))
    for length, expected in ((64, (0, 10)), (65, (64, 10)), (10, (0, 0))):
        model = abstract_model(config, ForwardOptions(max_model_len=length), "float32")
        assert model.layers.windows == expected


@functools.cache
def logits_of_a_step(dtype: str, kind: Kind) -> np.ndarray:
    """Logits of the tokens of two rows, from dummy weights."""
    config = dataclasses.replace(small.MODEL, qkv_bias=True, qk_norm=True, mlp_bias=True)
    batch = make_batch([[3, 1, 4, 1, 5], [9, 2]], [0, 0], shuffled_pages(2), 8)
    model = load_model(Path("absent"), config, ForwardOptions(stack=kind), dtype, "dummy")
    state, step = compiled_step(model)
    found, cache = step(state, batch, empty_cache(model, dtype))
    assert found.dtype == jnp.float32
    assert cache.dtype == dtype
    return np.asarray(found)[:7]


@pytest.mark.parametrize("kind", ["loop", "scan"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_type_computes(dtype: str, kind: Kind) -> None:
    logits = logits_of_a_step(dtype, kind)
    assert np.isfinite(logits).all()
    np.testing.assert_allclose(logits, logits_of_a_step("float32", kind), atol=0.1)


@pytest.mark.parametrize("tokens", [1, 2, 8])
@pytest.mark.parametrize("kind", ["loop", "scan"])
def test_the_cache_is_not_copied(kind: Kind, tokens: int) -> None:
    """On CPU both stacks update a donated cache in place.

    The scan's temporaries may hold the weights of one layer, which XLA's CPU compiler copies out of the stack on each
    trip; that is why the loop is the default there.
    """
    config = dataclasses.replace(small.MODEL, windows=(0,) * 4)
    model = abstract_model(config, ForwardOptions(stack=kind), "float32")
    graph, state = nnx.split(model)
    cache = jax.ShapeDtypeStruct(cache_shape("xla", CacheGeometry(4, 20_000, 16, 2, 4, "float32")), jnp.float32)

    def step(state: Any, batch: Any, kv_cache: jax.Array) -> tuple[jax.Array, jax.Array]:
        model = nnx.merge(graph, state)
        hidden, kv_cache = model(batch, kv_cache)
        return model.logits(hidden), kv_cache

    batch = make_batch([[1] * tokens], [0], shuffled_pages(1), tokens)
    compiled = jax.jit(step, donate_argnums=2).lower(state, batch, cache).compile(QUICK)
    memory = cast(Any, compiled.memory_analysis())
    cache_bytes = cache.size * 4
    assert memory.alias_size_in_bytes >= cache_bytes
    assert memory.temp_size_in_bytes < cache_bytes / 50


def test_scan_keeps_one_copy_of_the_structure() -> None:
    model = abstract_model(small.MODEL, ForwardOptions(stack="scan"), "float32")
    assert isinstance(model.layers, ScanStack)
    assert jax.tree.leaves(nnx.split(model.layers)[1])[0].shape[0] == len(small.MODEL.windows)
