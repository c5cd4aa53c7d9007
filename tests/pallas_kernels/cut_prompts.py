"""Inputs for which CPU attention kernels return the same bits: prompts cut into steps, and rows that share pages."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from jaxllm.pallas_kernels.ragged_batch import RaggedBatch

TOKENS = (300, 200)
"""Of two prompts."""
_CUTS = ((0, 130, 299, 300), (0, 49, 199, 200))
"""Where they are cut into steps; the last one is a decode."""

_ROWS = 21
"""More than go through shared pages together."""
_TOKENS_OF_A_ROW = 700

PREFIXES = st.integers(0, _TOKENS_OF_A_ROW)
SHARING_ROWS = st.lists(
    st.tuples(st.sampled_from([1, 1, 1, 1, 0, 2]), st.integers(0, _TOKENS_OF_A_ROW)), min_size=_ROWS, max_size=_ROWS
)
"""New and computed tokens of each row."""


def check_cuts(inputs: Any, names: tuple[str, ...], empty: jax.Array, implementation: str = "cpu") -> None:
    """Compare two whole prompts in one step with the same prompts in parts, and with one of them alone.

    `inputs` are those of a case with `TOKENS`; `names` are its arrays that have a token on their first axis, and
    `empty` is the cache as the backend has it.
    """
    whole, cache = _step(inputs, names, {row: (0, tokens) for row, tokens in enumerate(TOKENS)}, empty, implementation)
    together: dict[int, list[np.ndarray]] = {0: [], 1: []}
    cut = empty
    for step in range(3):
        rows = {row: (_CUTS[row][step], _CUTS[row][step + 1]) for row in (1, 0)}
        out, cut = _step(inputs, names, rows, cut, implementation)
        for row, part in out.items():
            together[row].append(part)
    alone, _ = _step(inputs, names, {1: (0, TOKENS[1])}, empty, implementation)
    for row in whole:
        np.testing.assert_array_equal(np.concatenate(together[row]), whole[row])
    np.testing.assert_array_equal(alone[1], whole[1])
    np.testing.assert_array_equal(cut[1, 1:], cache[1, 1:])


def check_shared_pages(
    common: Any, rows: list[tuple[int, int]], prefix: int, make_inputs: Callable[[Any], Any], run: Callable[..., Any]
) -> None:
    """Compare rows that share the pages of their prefix with rows that have pages of their own."""
    padding = 2 * _ROWS - sum(new for new, _ in rows)
    inputs = make_inputs(replace(common, rows=tuple(rows), prefix=prefix, padding_tokens=padding))
    apart = make_inputs(replace(inputs.case, prefix=0)).batch.page_table
    shared, own = (_results(each, common, run) for each in (inputs, _with_pages_of_its_own(inputs, apart)))
    np.testing.assert_array_equal(shared, own)


def _step(
    inputs: Any, names: tuple[str, ...], rows: dict[int, tuple[int, int]], cache: jax.Array, implementation: str
) -> tuple[dict[int, np.ndarray], jax.Array]:
    """Results of positions from `begin` up to `end` of each prompt, in one step, and the cache."""
    starts = np.cumsum([0, *TOKENS])
    tokens = np.concatenate([np.arange(starts[row] + begin, starts[row] + end) for row, (begin, end) in rows.items()])
    lengths = [end - begin for begin, end in rows.values()]
    batch = RaggedBatch(
        positions=jnp.asarray(np.asarray(inputs.batch.positions)[tokens]),
        token_rows=jnp.asarray(np.repeat(np.arange(len(rows)), lengths), jnp.int32),
        query_start=jnp.asarray(np.cumsum([0, *lengths]), jnp.int32),
        kv_lens=jnp.asarray([end for _, end in rows.values()], jnp.int32),
        page_table=jnp.asarray(np.asarray(inputs.batch.page_table)[list(rows)]),
        num_tokens=jnp.int32(len(tokens)),
        num_decodes=jnp.int32(sum(length == 1 for length in lengths)),
        num_requests=jnp.int32(len(rows)),
    )
    arrays = {name: jnp.asarray(np.asarray(getattr(inputs, name))[tokens]) for name in names}
    out, cache = replace(inputs, **arrays, kv_cache=cache, batch=batch).call(implementation)
    parts = np.split(np.asarray(out), np.cumsum(lengths)[:-1])
    return dict(zip(rows, parts, strict=True)), cache


def _with_pages_of_its_own(inputs: Any, page_table: jax.Array) -> Any:
    """The same cached values, but no page is in two rows."""
    table, apart = np.asarray(inputs.batch.page_table), np.asarray(page_table)
    cache = np.array(inputs.kv_cache)
    for row, (_, computed) in enumerate(inputs.case.rows):
        pages = -(-computed // inputs.case.page_size)
        cache[:, apart[row, :pages]] = cache[:, table[row, :pages]]
    return replace(inputs, kv_cache=jnp.asarray(cache), batch=replace(inputs.batch, page_table=jnp.asarray(apart)))


def _results(inputs: Any, common: Any, run: Callable[..., Any]) -> np.ndarray:
    """Of tokens that are not padding; all batches are compiled as one case, in arrays of the same shapes."""
    of_a_row = _TOKENS_OF_A_ROW // common.page_size + 2
    table, cache = np.asarray(inputs.batch.page_table), np.asarray(inputs.kv_cache)
    table = np.pad(table, ((0, 0), (0, of_a_row + 2 - table.shape[1])))
    cache = np.pad(cache, ((0, 0), (0, _ROWS * of_a_row - cache.shape[1]), *((0, 0),) * (cache.ndim - 2)))
    batch = replace(inputs.batch, page_table=jnp.asarray(table))
    alike = replace(inputs, case=common, kv_cache=jnp.asarray(cache), batch=batch)
    return np.asarray(run(alike)[0])[: inputs.case.num_tokens]
