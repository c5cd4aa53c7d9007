"""Models whose weights are packed for the CPU's kernel: the same logits, from the same checkpoints."""

import dataclasses
from pathlib import Path
from typing import Any, Literal, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxllm.models.cache import Cache
from jaxllm.models.causal_lm import abstract_model, load_model
from jaxllm.models.checkpoint.loading import open_weights
from jaxllm.models.config import ModelConfig
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.options import ForwardOptions
from jaxllm.pallas_kernels.paged_attention import CacheGeometry, cache_shape
from tests.models import small
from tests.models.paged import compiled_step, empty_cache, make_batch, shuffled_pages
from tests.quick import QUICK

Kind = Literal["loop", "scan"]
# Sizes of no whole blocks, and a feed-forward block whose second product has a depth the kernel does not take.
ODD = small.MODEL
BIASED = small.alike(small.MODEL, qkv_bias=True, bias=True, norm=NormPlan())
EVEN = dataclasses.replace(BIASED, intermediate_size=48, vocab_size=40)
HEADS_OF_32 = dataclasses.replace(small.MODEL, hidden_size=128, intermediate_size=64, head_size=32)


def logits(folder: Path, config: ModelConfig, options: ForwardOptions, dtype: str, load_format: str) -> np.ndarray:
    """Of the tokens of two rows."""
    model = load_model(open_weights(folder, load_format), config, options, dtype)
    state, step = compiled_step(model)
    batch = make_batch([[3, 1, 4, 1, 5], [9, 2]], [0, 0], shuffled_pages(2), 8)
    found, _ = step(state, batch, empty_cache(model, dtype))
    return np.asarray(found)[:7]


@pytest.mark.parametrize("kind", ["loop", "scan"])
@pytest.mark.parametrize("tied", [False, True])
def test_a_checkpoint_is_packed(tmp_path: Path, kind: Kind, tied: bool) -> None:
    values = {name: value for name, value in small.tensors().items() if not tied or name != "lm_head.weight"}
    folder = small.save(tmp_path, values)
    config = dataclasses.replace(ODD, tie_word_embeddings=tied)
    wanted = logits(folder, config, ForwardOptions(), "float32", "auto")
    found = logits(folder, config, ForwardOptions(stack=kind, native_matmul=True), "float32", "auto")
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


GATES = {"silu": EVEN, "gelu": small.alike(EVEN, activation="gelu")}
# CI has every two values of the three together.
EVERY_GATE = [
    pytest.param(
        GATES[gate], kind, dtype, id=f"{gate}-{kind}-{dtype}",
        marks=[pytest.mark.exhaustive] * ((gate == "gelu") ^ (kind == "scan") ^ (dtype == "bfloat16")),
    )
    for gate in GATES for kind in ("loop", "scan") for dtype in ("float32", "bfloat16")
]  # fmt: skip


@pytest.mark.parametrize(("config", "kind", "dtype"), EVERY_GATE)
def test_biases_norms_and_gates(config: ModelConfig, kind: Kind, dtype: str) -> None:
    wanted = logits(Path("absent"), config, ForwardOptions(), dtype, "dummy")
    found = logits(Path("absent"), config, ForwardOptions(stack=kind, native_matmul=True), dtype, "dummy")
    np.testing.assert_allclose(found, wanted, atol=1e-5 if dtype == "float32" else 0.1)


@pytest.mark.parametrize("kind", ["loop", "scan"])
def test_the_kernels_together(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.models.paged.PAGE_SIZE", 16)
    wanted = logits(Path("absent"), HEADS_OF_32, ForwardOptions(), "float32", "dummy")
    options = ForwardOptions(stack=kind, attention="cpu", native_matmul=True)
    found = logits(Path("absent"), HEADS_OF_32, options, "float32", "dummy")
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_a_scan_copies_neither_cache_nor_weights() -> None:
    """Each is larger than everything else; temporaries hold neither."""
    config = dataclasses.replace(small.alike(HEADS_OF_32, layers=4), intermediate_size=4096)
    model = abstract_model(config, ForwardOptions(stack="scan", attention="cpu", native_matmul=True), "float32")
    graph, state = nnx.split(model)
    cache: Any = jax.ShapeDtypeStruct(cache_shape("cpu", CacheGeometry(4, 1000, 16, 2, 32, "float32")), jnp.float32)

    def step(state: Any, batch: Any, cache: Cache) -> tuple[jax.Array, Cache]:
        hidden, cache = nnx.merge(graph, state)(batch, cache)
        return hidden, cache

    batch = make_batch([[1] * 8], [0], shuffled_pages(1), 8)
    lowered = jax.jit(step, donate_argnums=2).lower(state, batch, Cache((cache,)))
    memory = cast(Any, lowered.compile(QUICK).memory_analysis())
    one_weight = 4 * 4096 * 128
    assert memory.alias_size_in_bytes >= cache.size * 4
    assert memory.temp_size_in_bytes < one_weight / 2
