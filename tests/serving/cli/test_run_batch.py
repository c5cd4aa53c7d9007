"""`jaxllm run-batch` as people run it: real processes, which are interrupted and killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion

from jaxllm.serving.cli.main import main
from tests.serving.server_process import ONE_DEVICE, SMALL

FLAGS = SMALL[SMALL.index("--optimization-level") :]
DEADLINE = 300.0


def requests() -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for number in range(36):
        question = [{"role": "user", "content": f"What is {number} plus 3?"}]
        chat = {"messages": question, "max_tokens": 60, "temperature": 0, "ignore_eos": True}
        plain = {"prompt": f"Once upon a time {number}", "max_tokens": 80, "temperature": 0, "model": "demo"}
        url, body = [("/v1/chat/completions", chat), ("/v1/completions", plain)][number % 2]
        made.append({"custom_id": f"request {number}", "method": "POST", "url": url, "body": body})
    made[5]["body"]["temperature"] = -1
    made[7]["body"]["model"] = "another"
    made[9]["body"].update(use_beam_search=True, n=2)
    return made


def start(folder: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "jaxllm.serving.cli.main", "run-batch", "-i", "in.jsonl", "-o", "out.jsonl"]
    return subprocess.Popen(
        [*command, *FLAGS, *more], cwd=folder, stderr=subprocess.PIPE, text=True, env={**os.environ, **ONE_DEVICE}
    )


def lines_of(file: Path) -> list[bytes]:
    return file.read_bytes().splitlines(keepends=True) if file.exists() else []


def wait_for_lines(file: Path, count: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + DEADLINE
    while len(lines_of(file)) < count:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.slow
def test_killed_interrupted_and_gone_on_with(tmp_path: Path) -> None:
    given, file = requests(), tmp_path / "out.jsonl"
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(request) + "\n" for request in given))
    process = start(tmp_path, "--concurrency", "5")
    wait_for_lines(file, 4, process)
    process.kill()
    process.communicate()
    killed = lines_of(file)
    assert 4 <= len(killed) < len(given)
    # As if the kernel had been interrupted in the middle of the last line.
    file.write_bytes(b"".join(killed)[:-20])

    process = start(tmp_path, "--concurrency", "3")
    wait_for_lines(file, len(killed) + 3, process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130, said
    assert "finishing running requests" in said
    assert "run the same command again to continue" in said
    assert "Traceback" not in said
    interrupted = lines_of(file)
    assert interrupted[: len(killed) - 1] == killed[:-1]
    assert interrupted[-1].endswith(b"\n")
    assert len(interrupted) < len(given)

    process = start(tmp_path, "--concurrency", "3", "--max-restarts", "0")
    wait_for_lines(file, len(interrupted) + 3, process)
    children = psutil.Process(process.pid).children()
    (engine,) = (child for child in children if "jaxllm.serving.ipc.engine_process" in child.cmdline())
    engine.kill()
    _, said = process.communicate(timeout=DEADLINE)
    assert process.returncode == 1, said
    assert "run the same command again to continue" in said
    assert "Traceback" not in said
    interrupted = lines_of(file)
    assert not any(b'"status_code":503' in line for line in interrupted), "that is not the request's fault"

    # An engine that ends is restarted, and its requests are answered after all.
    process = start(tmp_path, "--concurrency", "3")
    wait_for_lines(file, len(interrupted) + 2, process)
    (engine,) = psutil.Process(process.pid).children()
    engine.kill()
    _, said = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, said
    assert "the engine process died: killed by SIGKILL" in said
    assert f"{len(interrupted)} were answered before" in said
    answers = [json.loads(line) for line in lines_of(file)]
    assert sorted(answer["custom_id"] for answer in answers) == sorted(request["custom_id"] for request in given)
    check_answers(given, {answer["custom_id"]: answer for answer in answers})

    # Nothing is left to do, and nothing is loaded for it.
    before = file.read_bytes()
    process = start(tmp_path)
    _, said = process.communicate(timeout=DEADLINE)
    assert (process.returncode, file.read_bytes()) == (0, before)
    assert "all 36 requests already have responses" in said


def check_answers(given: list[dict[str, Any]], answers: dict[str, Any]) -> None:
    for number, request in enumerate(given):
        answer = answers[request["custom_id"]]
        assert answer["error"] is None
        response = answer["response"]
        assert answer["id"] == f"batch_req_{response['request_id']}"
        if number in (5, 7):
            assert response["status_code"] == (400 if number == 5 else 404)
            assert response["body"]["error"]["message"]
            continue
        assert response["status_code"] == 200, response
        kind: Any = ChatCompletion if "chat" in request["url"] else Completion
        parsed = kind.model_validate(response["body"], strict=True)
        assert len(parsed.choices) == (2 if number == 9 else 1)
        assert parsed.usage.completion_tokens > 0


def test_the_summary_counts_what_was_refused(tmp_path: Path) -> None:
    given = requests()[:6]
    given[1]["body"]["max_tokens"] = 2
    assert given[5]["body"]["temperature"] == -1
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(request) + "\n" for request in (given[1], given[5])))
    process = start(tmp_path)
    _, said = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, said
    assert "2 of 2 requests answered, 1 of them with an error" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-i", "missing.jsonl", "-o", "out"], "cannot read --input-file"),
        (["-i", "in.jsonl"], "give --output-file"),
        (["-i", "in.jsonl", "-o", "out", "--concurrency", "0"], "must be at least 1"),
        (["-i", "wrong.jsonl", "-o", "out"], "wrong.jsonl: line 1: not valid JSON"),
        (["-i", "in.jsonl", "-o", "wrong.jsonl"], "line 1 is not a batch response"),
    ],
)
def test_what_is_wrong_is_one_line(
    tmp_path: Path,
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.jsonl").write_text(json.dumps(requests()[0]))
    (tmp_path / "wrong.jsonl").write_text("{\n")
    assert main(["run-batch", *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_flags_of_connections_are_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["run-batch", "-i", "in.jsonl", "-o", "out", "--port", "80"])
    assert caught.value.code == 2
    assert "--port" in capsys.readouterr().err


def test_validate_loads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(request) + "\n" for request in requests()))
    assert main(["run-batch", "-i", "in.jsonl", "--validate"]) == 0
    assert capsys.readouterr().out == "in.jsonl: 36 requests\n"
    assert [file.name for file in tmp_path.iterdir()] == ["in.jsonl"]
