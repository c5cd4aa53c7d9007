"""Arrays that are made once per step are those that every layer would make."""

from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxllm.pallas_kernels.paged_attention import Heads, prepare
from jaxllm.pallas_kernels.paged_attention.gpu.batch import MULTIPROCESSORS, GpuBatch, make_plans, plans_of
from jaxllm.pallas_kernels.paged_attention.inputs import Case, make_inputs
from jaxllm.pallas_kernels.short_rows import short_rows
from jaxllm.pallas_kernels.tpu_common.batch import TpuBatch, tpu_prepare

CASE = Case("prepare", ((1, 3), (1, 70), (5, 0), (7, 200)), padding_rows=2, padding_tokens=3)
HEADS = Heads(4, 2, 64, "bfloat16", frozenset({0, 70}))


def test_tpu_rows_that_are_not_decodes() -> None:
    batch = cast(TpuBatch, prepare("tpu", make_inputs(CASE).batch, HEADS))
    np.testing.assert_array_equal(batch.counts, [2, 2])
    np.testing.assert_array_equal(batch.order[:2], [2, 3])
    np.testing.assert_array_equal(batch.table[:, 0], batch.page_table)
    assert tpu_prepare(batch) is batch


@pytest.mark.parametrize("window", [None, 0, 70])
def test_gpu_plans(window: int | None) -> None:
    batch = make_inputs(CASE).batch
    prepared = cast(GpuBatch, prepare("gpu", batch, HEADS))
    plans = plans_of(prepared, window, HEADS, MULTIPROCESSORS)
    assert plans is prepared.plans[window or 0]
    for ours, expected in zip(
        jax.tree.leaves(plans),
        jax.tree.leaves(make_plans(batch, window, short_rows(batch), HEADS, MULTIPROCESSORS)),
        strict=True,
    ):
        np.testing.assert_array_equal(ours, expected)


def test_gpu_plans_that_are_not_prepared() -> None:
    batch = prepare("gpu", make_inputs(CASE).batch, HEADS)
    for window, blocks in ((jnp.int32(70), MULTIPROCESSORS), (8, MULTIPROCESSORS), (70, 3)):
        plans = plans_of(batch, window, HEADS, blocks)
        for ours, expected in zip(
            jax.tree.leaves(plans),
            jax.tree.leaves(make_plans(batch, window, short_rows(batch), HEADS, blocks)),
            strict=True,
        ):
            np.testing.assert_array_equal(ours, expected)


def test_others_need_nothing() -> None:
    batch = make_inputs(CASE).batch
    assert prepare("xla", batch, HEADS) is batch
