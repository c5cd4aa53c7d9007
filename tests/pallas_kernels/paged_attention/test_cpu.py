"""The kernel for CPUs: the same bits for a token, however its prompt was cut and whoever is in the step with it."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxllm.pallas_kernels.paged_attention.backend import find
from jaxllm.pallas_kernels.paged_attention.cases import Case, Inputs, make_inputs
from jaxllm.pallas_kernels.paged_attention.cpu.attention import merged_attention
from jaxllm.pallas_kernels.paged_attention.ragged import RaggedBatch
from tests.pallas_kernels.paged_attention.oracle import cached_inputs, check, run_function

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
    empty = find("cpu").from_canonical(inputs.kv_cache)
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
"""More than go through shared keys together."""
TOKENS_OF_A_ROW = 700


def _with_pages_of_its_own(inputs: Inputs) -> Inputs:
    """The same keys and values, but no page is in two rows."""
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
    cache = np.pad(cache, ((0, 0), (0, ROWS * of_a_row - cache.shape[1]), (0, 0), (0, 0), (0, 0)))
    batch = replace(inputs.batch, page_table=jnp.asarray(table))
    alike = replace(inputs, case=common, kv_cache=jnp.asarray(cache), batch=batch)
    return np.asarray(run_function("cpu")(alike)[0])[: inputs.case.num_tokens]


@pytest.mark.parametrize(
    "common",
    [
        Case("alike", (), num_heads=6),
        Case("alike_in_large_pages", (), num_heads=8, page_size=256, soft_cap=5.0, sinks=True, alibi=True),
        Case("alike_in_odd_pages", (), num_heads=2, page_size=48, kv_dtype="int8", k_scale=2**-5, v_scale=2**-4),
        Case("alike_in_a_window", (), num_heads=2, window=200),
    ],
    ids=lambda case: case.name,
)
@settings(max_examples=15, derandomize=True)
@given(
    rows=st.lists(
        st.tuples(st.sampled_from([1, 1, 1, 1, 0, 2]), st.integers(0, TOKENS_OF_A_ROW)), min_size=ROWS, max_size=ROWS
    ),
    prefix=st.integers(0, TOKENS_OF_A_ROW),
)
def test_the_same_bits_beside_rows_of_the_same_pages(common: Case, rows: list[tuple[int, int]], prefix: int) -> None:
    padding = 2 * ROWS - sum(new for new, _ in rows)
    inputs = make_inputs(replace(common, rows=tuple(rows), prefix=prefix, padding_tokens=padding))
    np.testing.assert_array_equal(_results(inputs, common), _results(_with_pages_of_its_own(inputs), common))


def _turned(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> jax.Array:
    """The rotary embedding of [T, heads, H]."""
    first, second = np.split(x.astype(np.float64), 2, axis=2)
    c, s = cos[:, None], sin[:, None]
    return jnp.asarray(np.concatenate([first * c - second * s, second * c + first * s], axis=2), jnp.float32)


@pytest.mark.parametrize(
    "case",
    [
        Case("merged", ((1, 5), (1, 33), (70, 3), (3, 29)), num_heads=6, padding_tokens=3, window=40, sinks=True),
        Case("merged_decodes", ((1, 5), (1, 16), (1, 200)), head_size=96, alibi=True, soft_cap=5.0),
    ],
    ids=lambda case: case.name,
)
def test_one_array_of_queries_keys_and_values_which_are_rotated_on_the_way(case: Case) -> None:
    inputs = cached_inputs(case)
    angles = np.random.default_rng(0).uniform(-4, 4, (inputs.q.shape[0], case.head_size // 2))
    cos, sin = np.cos(angles, dtype=np.float32), np.sin(angles, dtype=np.float32)
    cache = find("cpu").from_canonical(inputs.kv_cache)
    turned = replace(inputs, q=_turned(np.asarray(inputs.q), cos, sin), k=_turned(np.asarray(inputs.k), cos, sin))
    wanted, wanted_cache = replace(turned, kv_cache=cache).call("cpu")
    qkv = jnp.concatenate([inputs.q, inputs.k, inputs.v], axis=1).reshape(inputs.q.shape[0], -1)
    out, found_cache = merged_attention(
        qkv,
        (jnp.asarray(cos), jnp.asarray(sin)),
        cache,
        1,
        inputs.batch,
        inputs.options,
    )
    np.testing.assert_allclose(out.reshape(wanted.shape), wanted, rtol=0, atol=5e-6)
    np.testing.assert_allclose(found_cache, wanted_cache, rtol=0, atol=1e-6)


def test_merged_wants_float32() -> None:
    inputs = cached_inputs(Case("bfloat16", ((1, 5),), dtype="bfloat16"))
    angles = jnp.zeros((1, 32))
    cache = find("cpu").from_canonical(inputs.kv_cache)
    with pytest.raises(ValueError, match="float32"):
        merged_attention(inputs.q.reshape(1, -1), (angles, angles), cache, 1, inputs.batch, inputs.options)


def test_a_prompt_of_several_items_among_rows_without_tokens() -> None:
    case = Case("empties", (*((0, 0),) * 600, (500, 0)))
    check(case, *run_function("cpu")(cached_inputs(case)))
