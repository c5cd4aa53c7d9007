"""The XLA implementation reads each page of a context about once, and nothing of the tables beyond it."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxllm.pallas_kernels.paged_attention.cases import Case, Inputs, abstract_inputs, make_inputs
from jaxllm.pallas_kernels.paged_attention.xla.layout import head_major
from jaxllm.pallas_kernels.xla_common import blockwise as xla
from tests.pallas_kernels.paged_attention.oracle import run_function

SHORT = Case("short", ((1, 60), (1, 100), (20, 7)))


def _gathers(jaxpr: Any, cache_size: int) -> Iterator[Any]:
    """Equations that gather from an array as large as the cache, also those in loops."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "gather" and equation.invars[0].aval.size == cache_size:
            yield equation
        for value in jax.tree.leaves(equation.params, is_leaf=lambda leaf: hasattr(leaf, "jaxpr")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from _gathers(inner, cache_size)


def test_a_block_of_pages_is_gathered_once() -> None:
    case = Case("wide", ((1, 4000),) * 40 + ((100, 3000),))
    inputs = abstract_inputs(case)
    inputs = replace(inputs, kv_cache=jax.eval_shape(head_major, inputs.kv_cache))
    jaxpr = jax.make_jaxpr(lambda inputs: inputs.call("xla"))(inputs)
    token = case.num_kv_heads * case.head_size
    sizes = [gather.outvars[0].aval.size // token for gather in _gathers(jaxpr.jaxpr, inputs.kv_cache.size)]
    # Keys and values for a block of decodes, keys and values for a block of a prefill, each for all heads at once; and
    # all of it for GPUs and for others, where only one of the two is compiled.
    width = inputs.batch.page_table.shape[1] * case.page_size
    expected = []
    for blocks in (xla.LARGE, xla.SMALL):
        decode = min(blocks.decode_rows, 41) * min(blocks.decode_keys, width)
        expected += [decode] * 2 + [min(blocks.prefill_keys, width)] * 2
    assert sizes == expected


def test_short_contexts_leave_the_rest_of_the_table_alone() -> None:
    """Pages beyond the first block of keys hold NaN: whatever weight a read of them had, the result would be NaN."""
    inputs = make_inputs(SHORT)
    good, _ = run_function("xla")(inputs)
    poisoned = _with_long_tables(inputs)
    out, _ = run_function("xla")(poisoned)
    np.testing.assert_allclose(out, good, rtol=0, atol=1e-6)


def _with_long_tables(inputs: Inputs) -> Inputs:
    width = inputs.batch.page_table.shape[1]
    first_bad = inputs.kv_cache.shape[1]
    cache = jnp.pad(inputs.kv_cache, ((0, 0), (0, 1), (0, 0), (0, 0), (0, 0)), constant_values=jnp.nan)
    table = jnp.pad(inputs.batch.page_table, ((0, 0), (0, 64 - width)), constant_values=first_bad)
    # Inside a block every page may be read.
    block = max(xla.SMALL.decode_keys, xla.SMALL.prefill_keys) // inputs.case.page_size
    table = table.at[:, width:block].set(0)
    return replace(inputs, kv_cache=cache, batch=replace(inputs.batch, page_table=table))
