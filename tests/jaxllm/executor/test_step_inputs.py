"""The declared fields of a step: the host fills them in as the device reads them, and programs have what they use."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxllm.executor import step_inputs
from jaxllm.executor.compile.buckets import Bucket
from jaxllm.executor.step_inputs import (
    STEP_INPUTS,
    HostStep,
    StepInput,
    StepShape,
    host_sample_positions,
    sample_positions,
)
from jaxllm.scheduler.plan import StepPlan
from jaxllm.scheduler.table import RequestTable

BUCKET, SLOTS = Bucket(16, 6), 8


def shape(**options: bool | int) -> StepShape:
    return StepShape(table_width=4, page_size=4, max_logprobs=1, sample_rows=1, **options)  # type: ignore[arg-type]


def step_of(starts: list[int], counts: list[int]) -> HostStep:
    rows, samples = len(counts), np.ones(len(counts), np.bool_)
    plan = StepPlan(
        slots=np.arange(rows, dtype=np.int32)[::-1],
        num_new_tokens=np.array(counts, np.int32),
        starts=np.array(starts, np.int32),
        samples=samples,
        num_decodes=0,
        num_tokens=sum(counts),
        requests=[],
        admitted=[],
        preempted=[],
        generations=np.zeros(rows, np.int64),
    )
    table = RequestTable(SLOTS, 16, 4)
    table.num_tokens[:] = 16
    sampling = np.zeros((5, BUCKET.rows), np.int32), np.zeros((6, BUCKET.rows), np.float32)
    return HostStep(plan, table, BUCKET, samples, sampling, page_size=4, slots_per_shard=SLOTS)


def packed(shape: StepShape, step: HostStep) -> np.ndarray:
    vector, fields = shape.layout(BUCKET).host_buffer()
    step_inputs.fill([each for each in step_inputs.STEP_INPUTS if each.is_present(shape)], fields, step)
    return vector


@given(st.lists(st.tuples(st.integers(0, 10), st.integers(1, 4)), min_size=1, max_size=4))
def test_fields_say_which_tokens_a_row_has_and_where_it_samples(drawn: list[tuple[int, int]]) -> None:
    starts, counts = [start for start, _ in drawn], [count for _, count in drawn]
    step = step_of(starts, counts)
    inputs = shape().layout(BUCKET).unpack(jnp.asarray(packed(shape(), step)))
    rows = [row for row, count in enumerate(counts) for _ in range(count)]
    positions = [start + index for start, count in drawn for index in range(count)]
    total = len(rows)
    assert inputs["token_rows"][:total].tolist() == rows
    assert inputs["positions"][:total].tolist() == positions
    assert inputs["kv_lens"].tolist() == [start + count for start, count in drawn] + [0] * (BUCKET.rows - len(drawn))
    sampled = sample_positions(inputs["query_start"])
    last = [max(index for index, row in enumerate(rows) if row == each) for each in range(len(drawn))]
    assert sampled[: len(drawn)].tolist() == host_sample_positions(step.plan).tolist() == last
    assert all(0 <= position < BUCKET.tokens for position in sampled.tolist())


def test_a_declared_field_is_only_in_the_steps_of_engines_that_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = shape().layout(BUCKET).size

    offset = StepInput(
        "offset", ("R",), np.float32, lambda shape: shape.takes_embeddings, lambda step: np.full(step.plan.num_rows, 7)
    )
    monkeypatch.setattr(step_inputs, "STEP_INPUTS", (*STEP_INPUTS, offset))
    assert shape().layout(BUCKET).size == before
    layout = shape(takes_embeddings=True).layout(BUCKET)
    assert layout.size == before + BUCKET.rows
    made = packed(shape(takes_embeddings=True), step_of([0, 0], [1, 2]))
    assert layout.unpack(jnp.asarray(made))["offset"].tolist() == [7, 7, 0, 0, 0, 0]


@pytest.mark.parametrize("tables", [1, 3])
def test_a_step_has_one_field_of_a_name(tables: int) -> None:
    names = [each.name for each in STEP_INPUTS if each.is_present(shape(num_tables=tables))]
    assert len(names) == len(set(names))
