"""Whole steps for absent TPUs: what must hold of them, whatever they take."""

import json
from pathlib import Path

import pytest

from benchmarks.tpu_steps import Row, config_of, line, run_child
from jaxllm.models.checkpoint.model_config import read_config

MIB = 2**20


@pytest.mark.parametrize(("model", "billions"), [("llama-3.1-8b", 8.0), ("llama-3.2-1b", 1.2), ("llama-3.1-70b", 70.6)])
def test_the_models_have_their_size(tmp_path: Path, model: str, billions: float) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config_of(model)))
    config = read_config(tmp_path)
    narrow, wide = config.hidden_size, config.intermediate_size
    attention = 2 * narrow * (config.num_heads + config.num_kv_heads) * config.head_size
    tables = (1 if config.tie_word_embeddings else 2) * config.vocab_size * narrow
    found = config.num_layers * (attention + 3 * narrow * wide) + tables
    assert found / 1e9 == pytest.approx(billions, abs=0.05)


def test_a_line_of_the_table() -> None:
    row = Row("v6e-8", "llama-3.1-8b", "64x64", True, 2**30, MIB, 64, (("all-reduce", MIB, 2, False),), 1, 2, 3, 4, 5)
    assert line(row) == (
        "| v6e-8 | llama-3.1-8b | 64x64 | 1.0 | 1 | 64 | 10.00 | 1.00 | 2.00 | 3.00 | 4.00 | 5.00 | "
        "2 all-reduce of 1.0 MiB |"
    )
    assert line(Row("v5e-1", "m", "s", False, why="too large")) == "| v5e-1 | m | s | too large |"


@pytest.mark.slow
@pytest.mark.parametrize("step", ["4096x64", pytest.param("8192x256", marks=pytest.mark.exhaustive)])
def test_a_large_step_on_eight_devices(step: str) -> None:
    """With 8192x256 and libtpu 0.0.42.1: 71.7 ms, including 24.7 ms of waiting for links; 110.2 with whole tokens."""
    found = run_child("v6e-8", "llama-3.1-8b", step, timeout=600)
    assert found.fits, found.why
    assert found.temporaries < 128 * MIB, "the cache or the weights are copied"
    times: dict[tuple[str, bool], int] = {}
    for kind, size, count, is_async in found.collectives:
        if size >= MIB:
            times[kind, is_async] = times.get((kind, is_async), 0) + count
    # Before attention, and once at the end; after attention, and of the embedding.
    assert times["all-gather", False] == times["reduce-scatter", False] == 33
    # Tokens and sums in both directions, seven rounds in each of 32 layers; and little pieces of scattered sums.
    assert times["collective-permute", True] >= 32 * 7 * 4
    assert ("all-reduce", False) not in times
    assert found.links < 0.5 * found.milliseconds


@pytest.mark.exhaustive
def test_a_decode_on_eight_devices() -> None:
    """`tests/jaxllm/executor/test_tpu_step.py` counts the sums of a decode on four."""
    found = run_child("v6e-8", "llama-3.1-8b", "64x64", timeout=600)
    assert found.fits, found.why
    assert found.temporaries < 64 * MIB
    # What sampling sends is not looked at here.
    large = [each[:3] for each in found.collectives if each[1] >= MIB // 2 and each[0] != "all-to-all"]
    assert large == [("all-reduce", 64 * 4096 * 2, 65)]


@pytest.mark.exhaustive
def test_weights_are_not_copied_on_tpu7x() -> None:
    """Decision 031: without a compiler option temporaries are as large as the weights, 2 GiB a device.

    `tests/jaxllm/executor/test_tpu_step.py` shows for v6e that steps copy no weights.
    """
    found = run_child("tpu7x-8", "llama-3.1-8b", "64x64", timeout=600)
    assert found.fits, found.why
    assert found.temporaries < 64 * MIB
