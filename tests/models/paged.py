"""Drives a model as the engine does: through the paged cache, in chunks, with several rows."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxllm.models.batch import Batch
from jaxllm.models.cache import Cache, make_cache
from jaxllm.models.causal_lm import CausalLM
from jaxllm.models.kv_shape import kv_shape
from jaxllm.models.sharding import model_parallel
from jaxllm.pallas_kernels.ragged_batch import RaggedBatch
from tests.quick import QUICK

PAGE_SIZE, NUM_PAGES, WIDTH, ROWS, SLOTS = 4, 48, 16, 4, 7
State = nnx.State[Any, Any]
Step = Callable[[State, Batch, Cache], tuple[jax.Array, Cache]]


def empty_cache(model: CausalLM, dtype: str = "float32") -> Cache:
    """A cache of zeros."""
    config = model.config
    shape = kv_shape(
        config,
        model.options.attention,
        layers=model.cache.depth,
        pages=NUM_PAGES,
        page_size=PAGE_SIZE,
        dtype=dtype,
        devices=model_parallel(model.options.mesh),
    )
    return make_cache(model.cache, shape, SLOTS, dtype)


def compiled_step(model: CausalLM) -> tuple[State, Step]:
    """The parameters and a jitted step that gives the logits of all its tokens and donates the cache."""
    graph, state = nnx.split(model)

    def step(state: State, batch: Batch, cache: Cache) -> tuple[jax.Array, Cache]:
        model = nnx.merge(graph, state)
        hidden, cache = model(batch, cache)
        return model.logits(hidden), cache

    return state, jax.jit(step, donate_argnums=2, compiler_options=QUICK)


def make_batch(
    chunks: Sequence[Sequence[int]],
    starts: Sequence[int],
    page_tables: np.ndarray,
    num_tokens: int,
    slots: Sequence[int] | None = None,
) -> Batch:
    """A step which continues row r at position `starts[r]` with `chunks[r]`, padded to `num_tokens` and `ROWS`.

    Its state is in `slots[r]`, by default slot r.
    """
    lengths = np.array([len(chunk) for chunk in chunks])
    total, rows = int(lengths.sum()), len(chunks)
    tokens, positions, token_rows = (np.zeros(num_tokens, np.int32) for _ in range(3))
    tokens[:total] = np.concatenate(chunks)
    positions[:total] = np.concatenate([start + np.arange(len(c)) for c, start in zip(chunks, starts, strict=True)])
    token_rows[:total] = np.repeat(np.arange(rows), lengths)
    query_start = np.full(ROWS + 1, total, np.int32)
    query_start[: rows + 1] = np.concatenate([[0], np.cumsum(lengths)])
    kv_lens, table = np.zeros(ROWS, np.int32), np.zeros((ROWS, WIDTH), np.int32)
    kv_lens[:rows], table[:rows] = np.array(starts) + lengths, page_tables[:rows]
    num_decodes = int(np.cumprod(lengths == 1).sum())
    scalars = (jnp.int32(value) for value in (total, num_decodes, rows))
    arrays = (jnp.asarray(value) for value in (positions, token_rows, query_start, kv_lens, table))
    places = np.zeros(ROWS, np.int32)
    places[:rows] = np.arange(rows) if slots is None else slots
    return Batch(jnp.asarray(tokens), RaggedBatch(*arrays, *scalars), jnp.asarray(places))


def shuffled_pages(rows: int, seed: int = 0) -> np.ndarray:
    """A page table [rows, WIDTH] of distinct pages in random order, without the null page."""
    pages = np.random.default_rng(seed).permutation(np.arange(1, NUM_PAGES))
    return np.resize(pages[: rows * WIDTH], (rows, WIDTH)).astype(np.int32)


def run(
    model: CausalLM,
    prompts: Sequence[Sequence[int]],
    plan: Sequence[Sequence[int]],
    num_tokens: int,
    step: tuple[State, Step],
) -> list[np.ndarray]:
    """Logits [length, V] of every position of every prompt; step i of `plan` gives each prompt that many tokens."""
    state, function = step
    cache, pages = empty_cache(model), shuffled_pages(len(prompts))
    # Whoever had a slot before leaves what he likes in it.
    cache = replace(cache, states=jax.tree.map(lambda array: jnp.full_like(array, jnp.nan), cache.states))
    starts, logits = [0] * len(prompts), [[] for _ in prompts]  # type: ignore[var-annotated]
    for counts in plan:
        # Rows with one token come first, and rows without any are left out.
        order = sorted((row for row, count in enumerate(counts) if count), key=lambda row: counts[row] != 1)
        chunks = [prompts[row][starts[row] : starts[row] + counts[row]] for row in order]
        slots = [SLOTS - 1 - row for row in order]
        batch = make_batch(chunks, [starts[row] for row in order], pages[order], num_tokens, slots)
        out, cache = function(state, batch, cache)
        for row, part in zip(order, np.split(np.asarray(out), np.cumsum([len(c) for c in chunks])), strict=False):
            logits[row].append(part)
            starts[row] += len(part)
    assert starts == [len(prompt) for prompt in prompts]
    return [np.concatenate(parts) for parts in logits]
