"""Parts of a context put together, compared with a softmax over all of it."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxllm.pallas_kernels.paged_attention.gpu.options import ROWS
from jaxllm.pallas_kernels.paged_attention.gpu.plan import Plan
from jaxllm.pallas_kernels.paged_attention.gpu.results import FEW_PARTS, combine_decode
from jaxllm.pallas_kernels.paged_attention.inputs import Case, make_inputs
from jaxllm.pallas_kernels.short_rows import ShortRows

KV_HEADS, GROUP, HEAD = 2, 3, 8


@pytest.mark.parametrize("splits", [1, FEW_PARTS // 2, FEW_PARTS // 2 + 1])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_parts_are_weighed_by_their_sums(splits: int, *, with_sinks: bool) -> None:
    rng = np.random.default_rng(splits)
    counts = np.array([splits, 0, max(splits - 1, 1), 1])
    rows = len(counts)
    logs = rng.normal(0, 20, (rows * splits, KV_HEADS, 2, ROWS)).astype(np.float32)
    out = rng.normal(size=(rows * splits, KV_HEADS, 2, 8, HEAD)).astype(np.float32)
    sinks = rng.normal(0, 5, KV_HEADS * GROUP).astype(np.float32) if with_sinks else None
    wanted = np.zeros((rows, KV_HEADS, GROUP, HEAD))
    for row, count in enumerate(counts):
        places = slice(row * splits, row * splits + count)
        weights = np.exp2(logs[places, :, :, :GROUP].astype(np.float64))
        total = weights.sum(axis=(0, 2))
        if sinks is not None:
            total = total + np.exp(sinks.astype(np.float64)).reshape(KV_HEADS, GROUP)
        if count:
            wanted[row] = (weights[..., None] * out[places, :, :, :GROUP]).sum(axis=(0, 2)) / total[..., None]
        # What was never written may be anything.
        logs[row * splits + count : (row + 1) * splits] = np.nan
        out[row * splits + count : (row + 1) * splits] = np.nan
    first = jnp.arange(rows, dtype=jnp.int32) * splits
    plan = Plan(jnp.zeros((rows * splits, 8), jnp.int32), first, jnp.asarray(counts, jnp.int32))
    given = None if sinks is None else jnp.asarray(sinks)
    batch = make_inputs(Case("", ((1, 5),) * rows, padding_tokens=2)).batch
    short = ShortRows.of(batch, 1)
    found = combine_decode(plan, batch, short, jnp.asarray(out), jnp.asarray(logs), given, GROUP, splits)
    np.testing.assert_allclose(found[:rows], wanted.reshape(rows, -1, HEAD), atol=1e-5)
    assert not found[rows:].any()
