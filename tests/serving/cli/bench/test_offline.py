"""`jaxllm bench latency`, `throughput` and `startup` with `demo`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxllm.serving.cli.main import main

SMALL = (
    *("--model", "demo", "--optimization-level", "0", "--max-num-seqs", "4"),
    *("--max-num-batched-tokens", "16", "--max-model-len", "512"),
)
VLLM_LATENCY = {"avg_latency", "latencies", "percentiles"}
VLLM_THROUGHPUT = {"elapsed_time", "num_requests", "total_num_tokens", "requests_per_second", "tokens_per_second"}
VLLM_STARTUP = {
    f"{phase}_{name}_{kind}" if kind != "avg" else f"avg_{phase}_{name}_time"
    for phase in ("cold", "warm")
    for name in ("startup", "compilation")
    for kind in ("avg", "times", "percentiles")
}
"""Fields of the files that `vllm bench latency`, `throughput` and `startup` write (v0.33)."""


def figures(capsys: pytest.CaptureFixture[str], file: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    assert main(["bench", *arguments, *SMALL, "--output-json", str(file)]) == 0
    found: dict[str, Any] = json.loads(file.read_text())
    return found, capsys.readouterr().out


def test_latency(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    batch = ("--input-len", "6", "--output-len", "4", "--batch-size", "3")
    runs = ("--num-iters", "3", "--num-iters-warmup", "1", "--disable-detokenize")
    found, out = figures(capsys, tmp_path / "found.json", "latency", *batch, *runs)
    assert found.keys() == VLLM_LATENCY | {"std_latency"}
    assert len(found["latencies"]) == 3
    assert found["avg_latency"] == pytest.approx(np.mean(found["latencies"]))
    assert found["percentiles"]["90"] == pytest.approx(np.percentile(found["latencies"], 90))
    assert f"Avg latency: {found['avg_latency']} seconds" in out
    assert "99% percentile latency: " in out


def test_throughput(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    load = ("--num-prompts", "5", "--input-len", "7", "--output-len", "3", "--n", "2")
    found, out = figures(capsys, tmp_path / "found.json", "throughput", *load)
    assert found.keys() >= VLLM_THROUGHPUT
    assert (found["num_requests"], found["total_prompt_tokens"], found["total_output_tokens"]) == (5, 35, 30)
    assert found["total_num_tokens"] == 65
    assert found["tokens_per_second"] == pytest.approx(65 / found["elapsed_time"])
    assert out.startswith("Throughput: ")
    assert "Total num output tokens:  30" in out


@pytest.mark.slow
def test_startup(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    starts = ("--num-iters-cold", "1", "--num-iters-warmup", "1", "--num-iters-warm", "1")
    found, out = figures(capsys, tmp_path / "found.json", "startup", *starts)
    assert found.keys() == VLLM_STARTUP
    assert 0 < found["avg_warm_startup_time"] < found["avg_cold_startup_time"]
    # With filled caches nothing is compiled.
    assert found["avg_warm_compilation_time"] < 0.2 * found["avg_cold_compilation_time"]
    assert "Cold: avg startup time: " in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["latency", "--batch-size", "0"], "batch_size=0: must be at least 1"),
        (["latency", *SMALL, "--input-len", "600"], "600 tokens in and 128 out exceed max_model_len=512"),
        (["throughput", "--dataset-name", "sonnet"], "--dataset-name sonnet needs --dataset-path"),
        (["throughput", "--random-batch-size", "2"], "random_batch_size applies to embeddings only"),
        (["startup", "--model", "./absent", "--num-iters-cold", "1"], "the engine did not start: "),
        (["sweep", "serve", "--serve-cmd", "a"], "--bench-cmd is missing"),
        (["sweep", "plot", "./absent"], "found no results"),
    ],
)
def test_errors_are_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert main(["bench", *arguments]) in (1, 2)
    error = capsys.readouterr().err
    assert message in error
    assert error.strip().splitlines()[-1].startswith("jaxllm: ")
    assert "Traceback" not in error
