"""`jaxllm generate` as people run it: a process of its own on the real engine."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jaxllm import LLM, SamplingParams
from tests.conftest import ROOT, RunPython
from tests.e2e.text.conftest import SMALL

COMMAND = ("-m", "jaxllm.serving.cli.main", "generate")
ENGINE = [part for name, value in SMALL.items() for part in ("--" + name.replace("_", "-"), str(value))]
ENGINE.append("--enforce-eager")


def test_one_prompt(run_python: RunPython, llm: LLM) -> None:
    result = run_python(*COMMAND, "--prompt", "Once upon a time", "--temperature", "0", "--max-tokens", "30", *ENGINE)
    (want,) = llm.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=30), use_tqdm=False)
    assert result.stdout == want.outputs[0].text + "\n"
    assert result.returncode == 0
    assert (
        f"[{len(want.prompt_token_ids)} prompt tokens, {len(want.outputs[0].token_ids)} output tokens" in result.stderr
    )


def test_a_file(run_python: RunPython, llm: LLM, tmp_path: Path) -> None:
    talk = [{"role": "user", "content": "What is 2 + 3?"}]
    lines = [
        {"prompt": "Mira is"},
        {"messages": talk, "max_tokens": 40},
        {"prompt": [5, 6, 7], "n": 2, "temperature": 1},
    ]
    path, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    flags = ["--temperature", "0", "--max-tokens", "12", "--output", str(out)]
    result = run_python(*COMMAND, "--prompts-file", str(path), *flags, *ENGINE)
    assert result.returncode == 0, result.stderr
    assert result.stdout == ""
    results = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [each["index"] for each in results] == [0, 1, 2, 2]
    (plain,) = llm.generate("Mira is", SamplingParams(temperature=0, max_tokens=12), use_tqdm=False)
    (chat,) = llm.chat(talk, SamplingParams(temperature=0, max_tokens=40), use_tqdm=False)
    for got, want in zip(results, (plain, chat), strict=False):
        assert got["text"] == want.outputs[0].text
        assert got["finish_reason"] == want.outputs[0].finish_reason
        assert got["completion_tokens"] == len(want.outputs[0].token_ids)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--model", "/nowhere/at/all"], "no such folder"),
        (["--max-model-len", "100000", "--num-gpu-blocks-override", "8"], "max_model_len"),
        (["--prompt-logprobs", "-7"], "prompt_logprobs=-7"),
    ],
)
def test_errors_are_one_line_and_exit_code_2(run_python: RunPython, flags: list[str], message: str) -> None:
    result = run_python(*COMMAND, "--prompt", "x", *flags)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stderr.startswith("jaxllm: ")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_ctrl_c(tmp_path: Path) -> None:
    """Interrupted after its first result, it keeps that, and the exit code says why it ended."""
    lines = [{"prompt": "Mira is", "max_tokens": 2}] + [{"prompt": "Once", "max_tokens": 200, "ignore_eos": True}] * 400
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    with subprocess.Popen(
        [sys.executable, *COMMAND, "--prompts-file", str(path), *ENGINE],
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["prompt"] == "Mira is"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in errors
