"""Rows with drafts give what they would give token by token, to the last bit."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxllm.models.channel_plan import RealGatedPlan, WeightedMeanPlan
from jaxllm.models.matrix_memory_plan import MatrixMemoryPlan
from jaxllm.models.recurrent_plan import GatedDeltaPlan, SelectiveScanPlan, StateSpacePlan
from jaxllm.pallas_kernels.gated_delta import cases as gated_delta
from jaxllm.pallas_kernels.gated_delta import gated_delta as run_gated_delta
from jaxllm.pallas_kernels.linear_recurrence import cases as linear_recurrence
from jaxllm.pallas_kernels.linear_recurrence import linear_recurrence as run_linear_recurrence
from jaxllm.pallas_kernels.matrix_memory import cases as matrix_memory
from jaxllm.pallas_kernels.matrix_memory import matrix_memory as run_matrix_memory
from jaxllm.pallas_kernels.recurrence.cases import RowsCase, make_batch
from jaxllm.pallas_kernels.recurrence.rows import OUT_OF_RANGE, DraftRows, StateRows
from jaxllm.pallas_kernels.selective_scan import cases as selective_scan
from jaxllm.pallas_kernels.selective_scan import selective_scan as run_selective_scan
from jaxllm.pallas_kernels.state_space import cases as state_space
from jaxllm.pallas_kernels.state_space import state_space as run_state_space
from jaxllm.pallas_kernels.weighted_mean import cases as weighted_mean
from jaxllm.pallas_kernels.weighted_mean import weighted_mean as run_weighted_mean

ROWS, TOKENS, MOST, LENGTH = 10, 64, 4, 14
KERNELS: dict[str, Any] = {
    "gated_delta": (
        gated_delta, run_gated_delta, GatedDeltaPlan(key_heads=2, value_heads=4, key_size=8, value_size=6), 1,
    ),
    "linear_recurrence": (linear_recurrence, run_linear_recurrence, RealGatedPlan(channels=12, blocks=3), 1),
    "matrix_memory": (matrix_memory, run_matrix_memory, MatrixMemoryPlan(heads=2, key_size=8, value_size=6), 0),
    "weighted_mean": (weighted_mean, run_weighted_mean, WeightedMeanPlan(channels=12, hidden_size=8), 1),
    "state_space": (state_space, run_state_space, StateSpacePlan(heads=4, head_size=6, state_size=8, groups=2), 2),
    "selective_scan": (selective_scan, run_selective_scan, SelectiveScanPlan(channels=12, state_size=4, rank=2), 1),
}  # fmt: skip
FIXED = ("log_decay", "bonus")
"""Inputs that are no tokens'."""


class Rows:
    """Runs steps of a kernel over random tokens, by their numbers."""

    def __init__(self, name: str, platform: str) -> None:
        cases, kernel, plan, num_convolutions = KERNELS[name]
        made = cases.make_inputs(cases.Case(RowsCase("pool", (), (), tokens=TOKENS, rows=ROWS)))
        self.pool = made.tokens
        self.held = made.states._replace(
            inputs=tuple(
                jnp.full((2, ROWS, MOST, *each.shape), jnp.nan, each.dtype or "float32")
                for each in plan.draft_inputs[num_convolutions:]
            )
        )
        self.slots = jnp.asarray(np.random.default_rng(2).permutation(ROWS), jnp.int32)
        self.run = jax.jit(partial(kernel, platform=platform))

    def arguments(self, tokens: dict[int, list[int]], done: Any, drafts: Any = None, replayed: Any = None) -> Any:
        """The kernel's inputs for these tokens of rows, those with one token first; `drafts` of them are drafts."""
        rows = list(tokens)
        lengths = [len(tokens[row]) for row in rows]
        batch = make_batch(lengths, [done[row] for row in rows], TOKENS, ROWS)
        numbers = jnp.zeros(TOKENS, jnp.int32).at[: sum(lengths)].set(np.concatenate(list(tokens.values())))
        inputs = self.pool._replace(
            **{key: value[numbers] for key, value in self.pool._asdict().items() if key not in FIXED}
        )
        slots = jnp.full(ROWS, OUT_OF_RANGE, jnp.int32).at[: len(rows)].set(self.slots[jnp.asarray(rows)])
        begins = jnp.ones(ROWS, bool).at[: len(rows)].set(jnp.asarray([not done[row] for row in rows]))
        where, own = StateRows(slots, begins), self.held._replace(batch=batch)
        if drafts is None:
            own = own._replace(inputs=())
        else:
            counts = (jnp.zeros(ROWS, jnp.int32).at[: len(rows)].set(each[rows]) for each in (replayed, drafts))
            where = replace(where, drafts=DraftRows.of(*counts))
        return inputs, own._replace(rows=where)

    def step(self, tokens: dict[int, list[int]], *counts: Any) -> dict[int, Any]:
        """Outputs of each row's tokens."""
        out, (states, *kept) = self.run(*self.arguments(tokens, *counts))
        self.held = self.held._replace(states=states, inputs=tuple(kept) or self.held.inputs)
        ends = np.cumsum([len(own) for own in tokens.values()])
        return dict(zip(tokens, np.split(np.asarray(out)[: ends[-1]], ends[:-1]), strict=True))


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
@pytest.mark.parametrize("name", KERNELS)
def test_drafts(name: str, platform: str) -> None:
    """Elsewhere several rows are computed at once. Compiled for a CPU, such loops are fused in more than one way."""
    same = (
        np.testing.assert_array_equal
        if platform == "cpu"
        else partial(np.testing.assert_allclose, atol=1e-6, rtol=1e-5)
    )
    rng = np.random.default_rng(0)
    right = rng.integers(0, TOKENS, (ROWS, LENGTH)).tolist()
    plain, found = Rows(name, platform), Rows(name, platform)
    expected = [
        plain.step({row: [right[row][place]] for row in range(ROWS)}, np.full(ROWS, place)) for place in range(LENGTH)
    ]
    done, replayed = np.zeros(ROWS, int), np.zeros(ROWS, int)
    while (done < LENGTH).any():
        going_on = [row for row in np.flatnonzero(done < LENGTH).tolist() if rng.random() < 0.8]
        drafts, tokens, accepted = np.zeros(ROWS, int), {}, np.zeros(ROWS, int)
        for row in sorted(going_on, key=lambda row: row % 3 > 0):
            # Rows without drafts come first.
            drafts[row] = rng.integers(1, MOST + 1) if row % 3 else 0
            accepted[row] = min(rng.integers(0, drafts[row] + 1), LENGTH - done[row] - 1)
            known = right[row][done[row] : done[row] + 1 + accepted[row]]
            wrong = rng.integers(0, TOKENS, drafts[row] - accepted[row]).tolist()
            tokens[row] = [*known, *wrong]
        if not tokens:
            continue
        outputs = found.step(tokens, done, drafts, replayed)
        for row, own in outputs.items():
            for place in range(1 + accepted[row]):
                same(own[place], expected[done[row] + place][row][0])
            done[row] += 1 + accepted[row]
            replayed[row] = accepted[row]
    # One more token each, with which states take in what was right.
    last = {row: [0] for row in range(ROWS)}
    one, other = plain.step(last, done), found.step(last, done, np.zeros(ROWS, int), replayed)
    for row in range(ROWS):
        same(one[row], other[row])
    same(plain.held.states, found.held.states)


@pytest.mark.parametrize("name", KERNELS)
def test_arrays_are_updated_in_place(name: str) -> None:
    rows = Rows(name, "cpu")
    step = {row: [0] * (1 + row % 3) for row in (0, 3, 1, 2)}
    counts = np.array([0, 1, 2, 0, *[0] * (ROWS - 4)])
    inputs, held = rows.arguments(step, np.ones(ROWS, int), counts, counts)

    def run(states: jax.Array, kept: Any, held: Any) -> Any:
        return rows.run(inputs, held._replace(states=states, inputs=kept))

    compiled = jax.jit(run, donate_argnums=(0, 1)).lower(held.states, held.inputs, held).compile().as_text() or ""
    for array in (held.states, *held.inputs):
        shape = f"f32[{','.join(map(str, array.shape))}]"
        assert not [line for line in compiled.splitlines() if f" = {shape}" in line and " copy(" in line]
