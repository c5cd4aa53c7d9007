"""`jaxllm bench serve` and `sweep serve` with one real server."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.ports import free_ports
from tests.serving.cli.commands import KEY, MAIN, run
from tests.serving.server_process import ServerProcess

BENCH = (
    *("bench", "serve", "--disable-tqdm", "--num-prompts", "6"),
    *("--random-input-len", "12", "--random-output-len", "5"),
)


def saved(folder: Path) -> dict[str, Any]:
    (file,) = folder.glob("*.json")
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def test_bench_of_random_prompts(server: ServerProcess, tmp_path: Path) -> None:
    plot = tmp_path / "plot.png"
    done = run(
        *(*BENCH, "--base-url", server.url, "--max-concurrency", "2", "--save-detailed"),
        *("--result-dir", str(tmp_path), "--plot", str(plot), "--metric-percentiles", "25,99"),
        *("--goodput", "ttft:60000", "e2el:60000"),
    )
    assert done.returncode == 0, done.stderr
    assert "Successful requests:                     6" in done.stdout
    assert plot.read_bytes().startswith(b"\x89PNG")
    result = saved(tmp_path)
    assert (result["completed"], result["failed"], result["model_id"]) == (6, 0, "demo")
    assert (result["backend"], result["request_goodput"] is not None) == ("openai", True)
    assert result["input_lens"] == [12] * 6
    assert result["output_lens"] == [5] * 6
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (72, 30)
    assert result["max_concurrent_requests"] <= 2
    # A busy machine may deliver several events in one piece: no time between them.
    for metric, least in (("ttft", 0.01), ("tpot", 0), ("itl", 0), ("e2el", 0.01)):
        assert least <= result[f"p25_{metric}_ms"] <= result[f"p99_{metric}_ms"]
    assert result["median_ttft_ms"] <= result["median_e2el_ms"] < result["duration"] * 1000


def test_bench_of_a_file_at_a_rate(server: ServerProcess, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"messages": [{"role": "user", "content": "Hi"}], "output_tokens": 3}\n{"prompt": "What?"}\n')
    done = run(
        *(*BENCH, "--port", str(server.port), "--endpoint", "/v1/chat/completions", "--request-rate", "20"),
        *("--dataset-name", "file", "--dataset-path", str(file), "--save-result", "--result-dir", str(tmp_path)),
    )
    assert done.returncode == 0, done.stderr
    result = saved(tmp_path)
    assert (result["completed"], result["request_rate"], result["endpoint_type"]) == (6, 20.0, "openai-chat")
    # The last of 6 requests is sent after 0.3 seconds.
    assert result["duration"] >= 0.3


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--extra-body", '{"temperature": "hot"}'], 1, "the first request failed: status 400"),
        (["--model", "dmo"], 2, "has no model 'dmo'"),
        (["--percentile-metrics", "ttft,tptt"], 2, "unknown metric 'tptt'; did you mean"),
        (["--metric-percentiles", "101"], 2, "expected numbers from 0 to 100"),
        (["--request-rate", "0"], 2, "must be greater than 0"),
        (["--goodput", "itl:3"], 2, "goodput='itl:3': expected one of ttft, tpot, e2el"),
        (["--header", "x"], 2, "header='x': expected KEY=VALUE"),
        (["--backend", "openai-chat", "--endpoint", "/v1/completions"], 2, "cannot be combined with --endpoint"),
        (["--backend", "openai-embeddings", "--goodput", "ttft:3"], 2, "embeddings have no output tokens"),
        (["--profile"], 1, "--profile: /start_profile returned 400"),
        (["--dataset-name", "file"], 2, "needs --dataset-path"),
        (["--tokenizer", "./absent"], 2, "give it with --tokenizer"),
        (["--base-url", "http://127.0.0.1:9"], 1, "no server is listening"),
    ],
)
def test_bench_errors_are_one_line(server: ServerProcess, arguments: list[str], code: int, message: str) -> None:
    done = run(*BENCH, "--base-url", server.url, *arguments)
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_ramp_with_probes_and_appended_results(server: ServerProcess, tmp_path: Path) -> None:
    for _ in range(2):
        done = run(
            *(*BENCH, "--base-url", server.url, "--backend", "openai-chat", "--append-result", "--label", "mine"),
            *("--ramp-up-strategy", "exponential", "--ramp-up-start-rps", "10", "--ramp-up-end-rps", "20"),
            *("--metadata", "version=3", "--result-dir", str(tmp_path), "--result-filename", "runs.json"),
            *("--probe-request-rate", "20", "--request-id-prefix", "b-", "--temperature", "0"),
        )
        assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in (tmp_path / "runs.json").read_text().splitlines()]
    assert len(results) == 2
    for result in results:
        assert (result["label"], result["version"], result["backend"]) == ("mine", "3", "openai-chat")
        assert (result["completed"], result["probe_failed"]) == (6, 0)
        assert result["probe_completed"] >= 1
        assert (result["ramp_up_start_rps"], result["ramp_up_end_rps"]) == (10, 20)
        assert [event["rps"] for event in result["rps_change_events"]] == list(range(10, 21))
        # Texts of as many tokens as asked for, and what the template writes around each.
        assert result["total_input_tokens"] % 6 == 0


def done_at(server: ServerProcess) -> int:
    """How many requests the server has completed."""
    text = httpx.get(f"{server.url}/metrics", headers={"Authorization": f"Bearer {KEY}"}).text
    lines = [line for line in text.splitlines() if ":request_success_total{" in line]
    return sum(int(float(line.rpartition(" ")[2])) for line in lines)


def test_ctrl_c_reports_what_was_measured(server: ServerProcess, tmp_path: Path) -> None:
    before = done_at(server)
    file = tmp_path / "answers.json"
    command = [
        *(*MAIN, *BENCH, "--base-url", server.url, "--num-prompts", "5000", "--max-concurrency", "1"),
        *("--save-result", "--result-dir", str(tmp_path), "--result-filename", file.name),
    ]
    environment = {**os.environ, "JAXLLM_API_KEY": KEY}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        try:
            # One to warm up, and the first of the test itself.
            deadline = time.monotonic() + 120
            while done_at(server) < before + 5:
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            out, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130, errors
    result = json.loads(file.read_text())
    assert 1 <= result["completed"] < 5000
    assert result["interrupted"] == 5000 - result["completed"]
    assert "Interrupted requests:" in out
    assert errors == f"wrote {file}\n"


@pytest.mark.slow
def test_a_sweep_of_servers_and_tests(tmp_path: Path) -> None:
    port = str(free_ports())
    servers, tests = tmp_path / "servers.json", tmp_path / "tests.json"
    servers.write_text(json.dumps([{"max_num_seqs": 2}, {"max_num_seqs": 4}]))
    tests.write_text(json.dumps({"one": {"max_concurrency": 1}, "four": {"max_concurrency": 4}}))
    jaxllm = f"{sys.executable} -m jaxllm.serving.cli.main"
    flags = ("--host 127.0.0.1 --optimization-level 0 --max-num-batched-tokens 16 --max-model-len 512 "
             f"--max-num-seqs 4 --port {port}")  # fmt: skip
    sweep = [
        *("bench", "sweep", "serve", "--serve-cmd", f"{jaxllm} serve demo {flags}"),
        *("--bench-cmd", f"{jaxllm} {' '.join(BENCH)} --port {port}"),
        *("--serve-params", str(servers), "--bench-params", str(tests), "--link-vars", "max_num_seqs=max_concurrency"),
        *("--num-runs", "2", "-o", str(tmp_path / "results"), "-e", "first"),
    ]
    dry = run(*sweep, "--dry-run")
    assert dry.returncode == 0, dry.stderr
    # Only one combination has the same number on both sides.
    assert dry.stdout.count("server: ") == 2
    assert dry.stdout.count("  test: ") == 2
    done = run(*sweep)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "results" / "first"
    (summary,) = folder.rglob("summary.json")
    results = json.loads(summary.read_text())
    assert [(each["run_number"], each["max_num_seqs"], each["max_concurrency"]) for each in results] == [
        (0, 4, 4), (1, 4, 4)
    ]  # fmt: skip
    assert {each["completed"] for each in results} == {6}
    with (folder / "summary.csv").open() as file:
        assert [row["run_number"] for row in csv.DictReader(file)] == ["0", "1"]
    # It exists; and when it is resumed, there is nothing left to run.
    assert "--resume" in run(*sweep).stderr
    again = run(*sweep, "--resume")
    assert (again.returncode, "2 results" in again.stderr, "server:" in again.stderr) == (0, True, False)
    drawn = run("bench", "sweep", "plot", str(folder), "--var-x", "max_concurrency", "--curve-by", "max_num_seqs")
    assert drawn.stdout == f"{folder / 'FIGURE.png'}\n", drawn.stderr
