"""Recurrences update states where they lie: XLA copies no array of all slots."""

from typing import Any

import jax
import pytest

from jaxllm.pallas_kernels.gated_delta import cases as gated_delta
from jaxllm.pallas_kernels.linear_recurrence import cases as linear_recurrence
from jaxllm.pallas_kernels.matrix_memory import cases as matrix_memory
from jaxllm.pallas_kernels.recurrence.cases import ROWS
from jaxllm.pallas_kernels.selective_scan import cases as selective_scan
from jaxllm.pallas_kernels.state_space import cases as state_space
from jaxllm.pallas_kernels.weighted_mean import cases as weighted_mean


@pytest.mark.parametrize("rows", [row for row in ROWS if row.name in ("one_token", "mixed")], ids=lambda row: row.name)
@pytest.mark.parametrize(
    "kernel",
    [gated_delta, linear_recurrence, matrix_memory, selective_scan, state_space, weighted_mean],
    ids=lambda each: each.__name__.split(".")[-2],
)
def test_states_are_updated_in_place(kernel: Any, rows: Any) -> None:
    inputs = kernel.make_inputs(kernel.Case(rows))

    def run(states: jax.Array, inputs: Any) -> Any:
        return inputs._replace(states=inputs.states._replace(states=states)).call("xla")

    held = inputs.states.states
    compiled = jax.jit(run, donate_argnums=0).lower(held, inputs).compile().as_text()
    assert compiled is not None
    shape = f"f32[{','.join(map(str, held.shape))}]"
    copies = [line for line in compiled.splitlines() if f" = {shape}" in line and " copy(" in line]
    assert not copies
