"""The work of steps is what plans say of the same tokens, and adds up over rows of any kind."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxllm.config import EngineConfig
from jaxllm.executor.compile.generation import generation_programs
from jaxllm.executor.memory.capacity import bytes_on_device
from jaxllm.executor.resolve import resolve_config
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.planning.roofline import attention_work, matrix_work
from jaxllm.planning.step_work import StepWork
from tests.jaxllm.planning.llama import GPT_OSS_120B, write_model


def int32(*values: int) -> Any:
    return np.array(values, np.int32)


@pytest.fixture(params=["llama", "windows and experts"])
def resolved(request: pytest.FixtureRequest, tmp_path: Path) -> ResolvedConfig:
    changes = GPT_OSS_120B if request.param != "llama" else {}
    model = write_model(tmp_path / "model", **changes)
    return resolve_config(EngineConfig.from_options({"model": model, "dtype": "bfloat16", "max_model_len": 4096}))


def test_a_step_of_one_kind_is_that_of_the_plan(resolved: ResolvedConfig) -> None:
    parameters = generation_programs(resolved, 2).parameters
    counted, weights = StepWork(resolved, [parameters]), bytes_on_device(parameters)
    page = resolved.cache.page_bytes // resolved.num_devices
    for starts, new, lengths, rows in (
        (int32(999, 999, 999), int32(1, 1, 1), [1000] * 3, 3),
        (int32(0), int32(700), list(range(1, 701)), 1),
    ):
        flops, read, written = counted.of(starts, new, rows)
        matrices = matrix_work(resolved, weights, len(lengths), rows)
        attention = attention_work(resolved, page, lengths)
        assert flops == pytest.approx(matrices.flops + attention.flops)
        assert read + written == pytest.approx(matrices.bytes + attention.bytes)


def test_rows_add_up_and_a_prompt_in_chunks_is_as_much_work_as_at_once(resolved: ResolvedConfig) -> None:
    counted = StepWork(resolved, [generation_programs(resolved, 2).parameters])
    first, second = counted.of(int32(0), int32(300), 0), counted.of(int32(300), int32(400), 1)
    whole = counted.of(int32(0), int32(700), 1)
    assert first[0] + second[0] == pytest.approx(whole[0])
    assert first[2] + second[2] == pytest.approx(whole[2])
    both = counted.of(int32(0, 300), int32(300, 400), 1)
    assert both[0] == pytest.approx(whole[0])
    assert first[1] < both[1] < first[1] + second[1], "the weights are read once"
