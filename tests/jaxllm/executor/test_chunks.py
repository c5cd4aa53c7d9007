"""Attention within chunks: what resolving a configuration says of it, and the cut of a batch."""

import shutil
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given, settings

from benchmarks.models import FOLDER
from jaxllm.config import EngineConfig
from jaxllm.errors import ConfigError
from jaxllm.executor.resolve import resolve_config
from jaxllm.pallas_kernels.paged_attention.cases import Case, make_inputs
from jaxllm.pallas_kernels.paged_attention.local_chunks import chunked_batch, max_rows
from tests.pallas_kernels.paged_attention.test_random_batches import batches, padded_inputs


def test_pages_that_do_not_divide_chunks_are_an_error(tmp_path: Path) -> None:
    shutil.copy(FOLDER / "Llama-4-Scout-17B-16E.json", tmp_path / "config.json")
    options = {"model": str(tmp_path), "max_model_len": 32768}
    with pytest.raises(ConfigError, match="block_size=48: must divide the attention chunk of 8192 tokens"):
        resolve_config(EngineConfig.from_options({**options, "block_size": 48}))
    resolved = resolve_config(EngineConfig.from_options(options))
    # A table without end, and three of 12 layers that keep a chunk.
    assert resolved.cache_groups.windows == (0, 8192, 8192, 8192)
    with pytest.raises(ValueError, match="page size 16 must divide"):
        chunked_batch(make_inputs(Case("one", ((1, 9),))).batch, 24, 16)


CHUNK, COMMON = 32, Case("any", (), num_kv_heads=1, head_size=8)


@settings(max_examples=40, derandomize=True)
@given(rows=batches())
def test_rows_of_chunks(rows: tuple[tuple[int, int], ...]) -> None:
    """Every token is in the same page and at the same place as before, and there are rows enough."""
    case = replace(COMMON, rows=rows)
    before = padded_inputs(case, COMMON).batch
    after = jax.tree.map(np.asarray, jax.jit(chunked_batch, static_argnums=(1, 2))(before, CHUNK, case.page_size))
    used = int(after.num_requests)
    assert used <= max_rows(len(before.positions), len(before.kv_lens), CHUNK) == len(after.kv_lens)
    token = np.arange(case.num_tokens)
    lengths = np.diff(after.query_start)[:used]
    assert (lengths > 0).all()
    np.testing.assert_array_equal(np.repeat(np.arange(used), lengths), after.token_rows[token])
    positions = np.asarray(before.positions)[token]
    pages = np.asarray(before.page_table)[np.asarray(before.token_rows)[token], positions // case.page_size]
    np.testing.assert_array_equal(after.positions[token], positions % CHUNK)
    own = after.page_table[after.token_rows[token], after.positions[token] // case.page_size]
    np.testing.assert_array_equal(own, pages)
    ends = after.query_start[1 : used + 1] - 1
    np.testing.assert_array_equal(after.kv_lens[:used], positions[ends] % CHUNK + 1)
    assert (after.kv_lens[used:] == 0).all()
