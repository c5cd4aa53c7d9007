"""The kernel for CPUs: the same bits for a token, however its prompt was cut and whoever is in the step with it."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxllm.pallas_kernels.latent_attention.cases import Case, Inputs, make_inputs
from jaxllm.pallas_kernels.paged_attention.ragged import RaggedBatch
from tests.pallas_kernels.latent_attention.oracle import cached_inputs, run_function

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
        positions=jnp.asarray(np.asarray(inputs.batch.positions)[tokens]),
        token_rows=jnp.asarray(np.repeat(np.arange(len(rows)), lengths), jnp.int32),
        query_start=jnp.asarray(np.cumsum([0, *lengths]), jnp.int32),
        kv_lens=jnp.asarray([end for _, end in rows.values()], jnp.int32),
        page_table=jnp.asarray(np.asarray(inputs.batch.page_table)[list(rows)]),
        num_tokens=jnp.int32(len(tokens)),
        num_decodes=jnp.int32(sum(length == 1 for length in lengths)),
        num_requests=jnp.int32(len(rows)),
    )
    names = ("q_latent", "q_rope", "latent", "k_rope")
    arrays: dict[str, Any] = {name: jnp.asarray(np.asarray(getattr(inputs, name))[tokens]) for name in names}
    own = replace(inputs, **arrays, kv_cache=cache, batch=batch)
    out, cache = own.call("cpu")
    parts = np.split(np.asarray(out), np.cumsum(lengths)[:-1])
    return dict(zip(rows, parts, strict=True)), cache


@pytest.mark.parametrize(("heads", "dtype"), [(6, "float32"), (32, "bfloat16")])
def test_the_same_bits_however_cut_and_whoever_is_beside(heads: int, dtype: str) -> None:
    rows = tuple((tokens, 0) for tokens in TOKENS)
    inputs = cached_inputs(Case("prompts", rows, num_heads=heads, rope_size=16, dtype=dtype))
    empty = inputs.kv_cache
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


ROWS = 21
"""More than go through shared latents together."""
TOKENS_OF_A_ROW = 700


def _with_pages_of_its_own(inputs: Inputs) -> Inputs:
    """The same latents, but no page is in two rows."""
    table = np.asarray(inputs.batch.page_table)
    apart = np.asarray(make_inputs(replace(inputs.case, prefix=0)).batch.page_table)
    cache = np.array(inputs.kv_cache)
    for row, (_, computed) in enumerate(inputs.case.rows):
        pages = -(-computed // inputs.case.page_size)
        cache[:, apart[row, :pages]] = cache[:, table[row, :pages]]
    return replace(inputs, kv_cache=jnp.asarray(cache), batch=replace(inputs.batch, page_table=jnp.asarray(apart)))


def _results(inputs: Inputs, common: Case) -> np.ndarray:
    """Of tokens that are not padding; all batches are compiled as one case, in arrays of the same shapes."""
    of_a_row = TOKENS_OF_A_ROW // common.page_size + 2
    table, cache = np.asarray(inputs.batch.page_table), np.asarray(inputs.kv_cache)
    table = np.pad(table, ((0, 0), (0, of_a_row + 2 - table.shape[1])))
    cache = np.pad(cache, ((0, 0), (0, ROWS * of_a_row - cache.shape[1]), (0, 0), (0, 0)))
    batch = replace(inputs.batch, page_table=jnp.asarray(table))
    alike = replace(inputs, case=common, kv_cache=jnp.asarray(cache), batch=batch)
    return np.asarray(run_function("cpu")(alike)[0])[: inputs.case.num_tokens]


@settings(max_examples=12, derandomize=True)
@given(
    rows=st.lists(
        st.tuples(st.sampled_from([1, 1, 1, 1, 0, 2]), st.integers(0, TOKENS_OF_A_ROW)), min_size=ROWS, max_size=ROWS
    ),
    prefix=st.integers(0, TOKENS_OF_A_ROW),
)
def test_the_same_bits_beside_rows_of_the_same_pages(rows: list[tuple[int, int]], prefix: int) -> None:
    common = Case("alike", (), num_heads=6, page_size=48, layers=2)
    padding = 2 * ROWS - sum(new for new, _ in rows)
    inputs = make_inputs(replace(common, rows=tuple(rows), prefix=prefix, padding_tokens=padding))
    np.testing.assert_array_equal(_results(inputs, common), _results(_with_pages_of_its_own(inputs), common))


def test_sizes_that_are_not_whole_vectors_are_refused() -> None:
    with pytest.raises(ValueError, match="these are 64, 24 and 16, and float32"):
        make_inputs(Case("odd", ((1, 5),), rope_size=24)).call("cpu")
