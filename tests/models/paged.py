"""Drives a model as the engine does: through the paged cache, in chunks, with several rows."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxllm.models.batch import Batch
from jaxllm.models.causal_lm import CausalLM
from jaxllm.pallas_kernels.paged_attention import CacheGeometry, cache_shape
from jaxllm.pallas_kernels.paged_attention.ragged import RaggedBatch

PAGE_SIZE, NUM_PAGES, WIDTH, ROWS = 4, 48, 16, 4
State = nnx.State[Any, Any]
Step = Callable[[State, Batch, jax.Array], tuple[jax.Array, jax.Array]]


def empty_cache(model: CausalLM, dtype: str = "float32") -> jax.Array:
    """A cache of zeros."""
    config = model.config
    geometry = CacheGeometry(len(config.windows), NUM_PAGES, PAGE_SIZE, config.num_kv_heads, config.head_size, dtype)
    return jnp.zeros(cache_shape(model.options.attention, geometry), jnp.dtype(dtype))


def compiled_step(model: CausalLM) -> tuple[State, Step]:
    """The parameters and a jitted step that gives the logits of all its tokens and donates the cache."""
    graph, state = nnx.split(model)

    def step(state: State, batch: Batch, kv_cache: jax.Array) -> tuple[jax.Array, jax.Array]:
        model = nnx.merge(graph, state)
        hidden, kv_cache = model(batch, kv_cache)
        return model.logits(hidden), kv_cache

    # Compiling takes nearly all the time of these tests, and their models are too small to care how well.
    quick = {"xla_backend_optimization_level": 0}
    return state, jax.jit(step, donate_argnums=2, compiler_options=quick)


def make_batch(
    chunks: Sequence[Sequence[int]], starts: Sequence[int], page_tables: np.ndarray, num_tokens: int
) -> Batch:
    """A step which continues row r at position `starts[r]` with `chunks[r]`, padded to `num_tokens` and `ROWS`."""
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
    return Batch(jnp.asarray(tokens), RaggedBatch(*arrays, *scalars))


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
    starts, logits = [0] * len(prompts), [[] for _ in prompts]  # type: ignore[var-annotated]
    for counts in plan:
        # Rows with one token come first, and rows without any are left out.
        order = sorted((row for row, count in enumerate(counts) if count), key=lambda row: counts[row] != 1)
        chunks = [prompts[row][starts[row] : starts[row] + counts[row]] for row in order]
        batch = make_batch(chunks, [starts[row] for row in order], pages[order], num_tokens)
        out, cache = function(state, batch, cache)
        for row, part in zip(order, np.split(np.asarray(out), np.cumsum([len(c) for c in chunks])), strict=False):
            logits[row].append(part)
            starts[row] += len(part)
    assert starts == [len(prompt) for prompt in prompts]
    return [np.concatenate(parts) for parts in logits]
