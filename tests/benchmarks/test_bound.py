"""The bound that the comparison with vLLM gives: arithmetic that can be done by hand."""

import math

import pytest

from benchmarks.peers.bound import bound
from benchmarks.peers.workloads import Workload
from benchmarks.shared.machine import Machine, measure_machine

CONFIG = {
    "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2, "vocab_size": 10,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 2,
}  # fmt: skip
# Per layer: query and output 8 x 8 each, key and value 8 x 4 each, three of 8 x 16; the head 8 x 10.
WEIGHTS, HEAD = 2 * (2 * 64 + 2 * 32 + 3 * 128), 80


def test_a_machine_that_only_waits_for_memory() -> None:
    """Two steps: the prompt reads the weights, the second one also what was cached of two tokens and of its own."""
    found = bound(Workload("", 1, 2, 2), CONFIG, Machine(flops=math.inf, bandwidth=1000.0, bfloat16_flops=math.inf))
    first, second = 4 * (WEIGHTS + HEAD), 4 * (WEIGHTS + HEAD + 2 * 2 * 4 * 3)
    assert found.itl_ms == pytest.approx(second)
    assert found.output_tokens_per_s == pytest.approx(2 / ((first + second) / 1000))


def test_a_machine_that_only_waits_for_arithmetic() -> None:
    """Shared tokens are computed once; a pair of query and key takes 4 operations per number of a head."""
    machine = Machine(flops=1000.0, bandwidth=math.inf, bfloat16_flops=math.inf)
    found = bound(Workload("", 3, 6, 2, shared_tokens=4), CONFIG, machine)
    pairs = 4**2 / 2 + 3 * 2 * (4 + 2 / 2)
    first = 2 * WEIGHTS * (4 + 3 * 2) + 2 * HEAD * 3 + 4 * 8 * 2 * pairs
    second = 3 * (2 * (WEIGHTS + HEAD) + 4 * 8 * 2 * 7)
    assert found.itl_ms == pytest.approx(second)
    assert found.output_tokens_per_s == pytest.approx(6 / ((first + second) / 1000))


def test_bfloat16_has_its_own_rates() -> None:
    """Half of the bytes, and operations at the rate of their type."""
    workload = Workload("", 2, 4, 3)
    for machine in (
        Machine(flops=math.inf, bandwidth=1000.0, bfloat16_flops=math.inf),
        Machine(flops=1000.0, bandwidth=math.inf, bfloat16_flops=2000.0),
    ):
        wide, narrow = (bound(workload, CONFIG, machine, dtype) for dtype in ("float32", "bfloat16"))
        assert narrow.itl_ms == pytest.approx(wide.itl_ms / 2)
        assert narrow.output_tokens_per_s == pytest.approx(2 * wide.output_tokens_per_s)


def test_this_machine_computes_faster_than_it_reads() -> None:
    machine = measure_machine()
    assert machine.flops > machine.bandwidth > 1e8
