"""An engine expects the same step times as `jaxllm plan`."""

from dataclasses import replace
from pathlib import Path

import pytest

from jaxllm.config import EngineConfig
from jaxllm.executor.compile.generation import generation_programs
from jaxllm.executor.resolve import resolve_config
from jaxllm.pallas_kernels.chips import CHIPS
from jaxllm.planning.communication import handover_seconds
from jaxllm.planning.memory import estimate_memory
from jaxllm.planning.roofline import estimate
from jaxllm.planning.step_times import planned_step_seconds
from jaxllm.planning.target import find_target
from tests.jaxllm.planning.llama import write_model


@pytest.mark.parametrize("devices", [1, 8])
def test_as_planned(tmp_path: Path, devices: int) -> None:
    pytest.importorskip("libtpu")
    target = find_target("v6e", None, devices)
    options = {"model": write_model(tmp_path), "tensor_parallel_size": devices}
    resolved = resolve_config(EngineConfig.from_options(options), target.devices)
    programs = generation_programs(resolved, 4)
    buckets = programs.buckets.all
    found = planned_step_seconds(resolved, programs.parameters, buckets)
    assert list(found) == [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192]
    memory = estimate_memory(resolved, target)
    assert target.chip is not None
    for bucket in buckets:
        assert found[bucket.tokens] == estimate(resolved, target.chip, memory.weights, memory.page, bucket).seconds
    unknown = replace(resolved, device_kind="a chip of another maker")
    assert planned_step_seconds(unknown, programs.parameters, buckets) == {}


def test_what_stages_give_each_other(tmp_path: Path) -> None:
    """In a slice of 2x4 chips the second stage lies alongside the first: two rows of two chips share a column's
    link.
    """
    pytest.importorskip("libtpu")
    target = find_target("v6e", "2x4", 8)
    options = {"model": write_model(tmp_path), "tensor_parallel_size": 4, "pipeline_parallel_size": 2}
    first, second = resolve_config(EngineConfig.from_options(options), target.devices).stage_configs
    assert target.chip is not None
    small, large = (handover_seconds(first, second, target.chip, tokens) for tokens in (8, 2048))
    assert small is not None
    assert large is not None
    # Few tokens are whole on each device, many are split between them.
    assert small == pytest.approx(2 * 8 * 4096 * 2 / 90e9 + 2e-6)
    assert large == pytest.approx(2 * 2048 * 4096 * 2 / 4 / 90e9 + 2e-6)
    assert handover_seconds(first, second, CHIPS["h100"], 8) is None
