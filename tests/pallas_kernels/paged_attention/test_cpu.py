"""The kernel for CPUs: the same bits for a token, however its prompt was cut and whoever is in the step with it."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxllm.pallas_kernels.paged_attention.cases import Case, Inputs
from jaxllm.pallas_kernels.paged_attention.layout import to_layout
from jaxllm.pallas_kernels.paged_attention.ragged import RaggedBatch
from tests.pallas_kernels.paged_attention.oracle import cached_inputs

TOKENS = (300, 200)
"""Of two prompts."""
CUTS = ((0, 130, 299, 300), (0, 49, 199, 200))
"""Where they are cut into steps; the last one is a decode."""


def _step(
    inputs: Inputs, rows: dict[int, tuple[int, int]], cache: jax.Array
) -> tuple[dict[int, np.ndarray], jax.Array]:
    """Results of positions from `begin` up to `end` of each prompt, in one step, and the cache."""
    starts = np.cumsum([0, *TOKENS])
    tokens = np.concatenate([np.arange(starts[row] + begin, starts[row] + end) for row, (begin, end) in rows.items()])
    lengths = [end - begin for begin, end in rows.values()]
    batch = RaggedBatch(
        positions=inputs.batch.positions[tokens],
        token_rows=jnp.asarray(np.repeat(np.arange(len(rows)), lengths), jnp.int32),
        query_start=jnp.asarray(np.cumsum([0, *lengths]), jnp.int32),
        kv_lens=jnp.asarray([end for _, end in rows.values()], jnp.int32),
        page_table=inputs.batch.page_table[jnp.asarray(list(rows))],
        num_tokens=jnp.int32(len(tokens)),
        num_decodes=jnp.int32(sum(length == 1 for length in lengths)),
        num_requests=jnp.int32(len(rows)),
    )
    q, k, v = (x[tokens] for x in (inputs.q, inputs.k, inputs.v))
    out, cache = replace(inputs, q=q, k=k, v=v, kv_cache=cache, batch=batch).call("cpu")
    parts = np.split(np.asarray(out), np.cumsum(lengths)[:-1])
    return dict(zip(rows, parts, strict=True)), cache


@pytest.mark.parametrize(
    "features", [{}, {"window": 40}, {"sinks": True, "soft_cap": 5.0, "alibi": True}], ids="-".join
)
def test_the_same_bits_however_cut_and_whoever_is_beside(features: dict[str, Any]) -> None:
    inputs = cached_inputs(Case("prompts", tuple((tokens, 0) for tokens in TOKENS), num_heads=6, **features))
    empty = to_layout("cpu", inputs.kv_cache)
    whole, cache = _step(inputs, {row: (0, tokens) for row, tokens in enumerate(TOKENS)}, empty)
    together: dict[int, list[np.ndarray]] = {0: [], 1: []}
    cut = empty
    for step in range(3):
        out, cut = _step(inputs, {row: CUTS[row][step : step + 2] for row in (1, 0)}, cut)  # type: ignore[misc]
        for row, part in out.items():
            together[row].append(part)
    alone, _ = _step(inputs, {1: (0, TOKENS[1])}, empty)
    for row in whole:
        np.testing.assert_array_equal(np.concatenate(together[row]), whole[row])
    np.testing.assert_array_equal(alone[1], whole[1])
    np.testing.assert_array_equal(cut[1, 1:], cache[1, 1:])
