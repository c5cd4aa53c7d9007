"""Whisper gives transformers' hidden states and logits, whatever runs its layers and its attention."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from jaxllm.models.batch import Batch
from jaxllm.models.cache import Cache, make_cache
from jaxllm.models.causal_lm import CausalLM, load_model
from jaxllm.models.checkpoint.checkpoint import Checkpoint
from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.errors import ModelError
from jaxllm.models.kv_shape import kv_shape
from jaxllm.models.options import ForwardOptions
from jaxllm.models.towers.sound import SoundTower
from jaxllm.pallas_kernels.ragged_batch import RaggedBatch
from tests.e2e.sound.hearing import expected_logits, reference_in, save_small_model
from tests.e2e.sound.windows import window
from tests.models.paged import compiled_step
from tests.quick import QUICK

PAGE_SIZE = 16
PROMPTS = ([1, 5, 7, 9, 20, 33], [1, 8], [1, 60, 61])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("hearing")
    save_small_model(found)
    return found


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    return reference_in(folder)


def compiled(module: Any) -> Callable[..., Any]:
    """A module as one program: operation by operation, each would be compiled alone."""
    graph, parameters = nnx.split(module)
    merge: Any = nnx.merge
    return partial(jax.jit(lambda given, *inputs: merge(graph, given)(*inputs), compiler_options=QUICK), parameters)


def test_hidden_states(folder: Path, reference: Any) -> None:
    model = load_model(Checkpoint(folder), read_config(folder), ForwardOptions(max_model_len=64), "float32")
    assert model.sound is not None
    with torch.no_grad():
        wanted = reference.model.encoder(torch.from_numpy(window(0))[None]).last_hidden_state[0].numpy()
    encode = compiled(model.sound.encoder)
    np.testing.assert_allclose(encode(jnp.asarray(window(0))), wanted, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("stack", "attention", "native"),
    [("loop", "xla", False), ("scan", "xla", False), ("loop", "reference", False), ("scan", "cpu", True)],
)
def test_logits(folder: Path, reference: Any, stack: Literal["loop", "scan"], attention: str, native: bool) -> None:
    options = ForwardOptions(max_model_len=64, stack=stack, attention=attention, native_matmul=native)
    model = load_model(Checkpoint(folder), read_config(folder), options, "float32")
    cache, firsts = with_windows(model, (0, 1, 0))
    parameters, step = compiled_step(model)
    found, _ = step(parameters, batch_of(PROMPTS, firsts), cache)
    logits = np.asarray(found)
    begin = 0
    for prompt, seed in zip(PROMPTS, (0, 1, 0), strict=True):
        own = logits[begin : begin + len(prompt)]
        np.testing.assert_allclose(own, expected_logits(reference, window(seed), prompt), atol=1e-4, rtol=0)
        begin += len(prompt)


def with_windows(model: CausalLM, seeds: tuple[int, ...]) -> tuple[Cache, list[int]]:
    """A cache with these windows after four pages, and the first page of each."""
    assert isinstance(model.sound, SoundTower)
    each = -(-model.sound.plan.num_keys // PAGE_SIZE)
    implementation, depth = model.options.attention, model.cache.depth
    shape = kv_shape(
        model.config, implementation, layers=depth, pages=4 + 2 * each, page_size=PAGE_SIZE, dtype="float32"
    )
    cache = make_cache(model.cache, shape, 4, "float32")
    (pages,) = cache.pages
    hear = compiled(model.sound)
    for seed in set(seeds):
        pages = hear(jnp.asarray(window(seed)), pages, jnp.int32(4 + seed * each))
    return replace(cache, pages=(pages,)), [4 + seed * each for seed in seeds]


def batch_of(prompts: tuple[list[int], ...], first_pages: list[int], size: int = 16) -> Batch:
    """Prompts as a step that computes them whole, each in a page of its own."""
    lengths = [len(prompt) for prompt in prompts]
    padding, rows = [0] * (size - sum(lengths)), len(prompts)
    return Batch(
        jnp.array([*(token for prompt in prompts for token in prompt), *padding], jnp.int32),
        RaggedBatch(
            positions=jnp.array([*(place for length in lengths for place in range(length)), *padding], jnp.int32),
            token_rows=jnp.array([*np.repeat(np.arange(rows), lengths), *padding], jnp.int32),
            query_start=jnp.array([0, *np.cumsum(lengths)], jnp.int32),
            kv_lens=jnp.array(lengths, jnp.int32),
            page_table=jnp.arange(1, rows + 1, dtype=jnp.int32)[:, None],
            num_tokens=jnp.int32(sum(lengths)),
            num_decodes=jnp.int32(0),
            num_requests=jnp.int32(rows),
        ),
        cross_pages=jnp.array(first_pages, jnp.int32),
    )


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"d_model": 66}, "'d_model' must be a multiple of decoder_attention_heads=4"),
        ({"encoder_attention_heads": 3}, "'d_model' must be a multiple of encoder_attention_heads=3"),
        ({"activation_function": "sine"}, "'activation_function' must be one of"),
        ({"sees": 1}, "option 'sees' = 1 is unknown"),
    ],
)
def test_configurations_that_it_does_not_have(
    folder: Path, tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    values = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, "decoder_attention_heads": 4, **changes}))
    with pytest.raises(ModelError, match=problem):
        read_config(tmp_path)
