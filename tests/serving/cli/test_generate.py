"""`jaxllm generate` over a scripted engine: what is read, written and refused."""

import io
import json
import os
import signal
from collections.abc import Callable
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest

from jaxllm.engine.validation import RequestLimits
from jaxllm.requests.outputs import EngineOutput
from jaxllm.requests.sampling_params import INTERNAL_FIELDS, SamplingParams
from jaxllm.serving.cli import main as cli
from jaxllm.serving.cli.sampling_flags import add_sampling_flags, explicit_sampling, field_docs
from jaxllm.serving.llm.llm_engine import LLMEngine
from jaxllm.serving.text.input_processor import InputProcessor
from jaxllm.serving.text.tokenizer import Tokenizer

END = 2


@pytest.fixture
def engine(tokenizer: Tokenizer, scripted_engine: type, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Every request generates its own prompt backwards."""
    scripted = scripted_engine(lambda request: chain(reversed(request.prompt_token_ids.tolist()), repeat(END)))
    inputs = InputProcessor(tokenizer, RequestLimits(vocab_size=360, max_model_len=100, max_logprobs=5), [END])
    default = SamplingParams(top_k=7)
    monkeypatch.setattr(
        "jaxllm.serving.llm.llm.open_engine", lambda *_, **__: LLMEngine(scripted, tokenizer, inputs, default)
    )
    return scripted


@pytest.fixture
def backwards(tokenizer: Tokenizer) -> Callable[[str], str]:
    return lambda text: tokenizer.decode(tokenizer.encode([text])[0][::-1])


def test_one_prompt_is_printed_as_it_comes(
    engine: Any, backwards: Callable[[str], str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = []
    engine.on_step = lambda: shown.append(capsys.readouterr().out)
    assert cli.main(["generate", "--prompt", "the cat"]) == 0
    rest = capsys.readouterr()
    assert "".join(shown) + rest.out == backwards("the cat") + "\n"
    assert len([piece for piece in shown if piece]) > 1, "it came at once"
    assert "tokens/s, first token after" in rest.err
    params = engine.added[0].params
    assert (params.max_tokens, params.top_k) == (256, 7), "our default, and the model's"


def test_flags_reach_the_request(engine: Any) -> None:
    flags = ["--max-tokens", "5", "--temperature", "0.5", "--top-k", "3", "--stop", "x", "--stop", "yy", "--ignore-eos"]
    more = ["--stop-token-ids", "7", "8", "--logit-bias", '{"9": -3}', "--no-skip-special-tokens"]
    assert cli.main(["generate", "--prompt", "the cat", *flags, *more]) == 0
    assert engine.added[0].params == SamplingParams(
        max_tokens=5,
        temperature=0.5,
        top_k=3,
        stop=["x", "yy"],
        ignore_eos=True,
        stop_token_ids=[7, 8],
        logit_bias={9: -3},
        skip_special_tokens=False,
    )


def test_a_chat(engine: Any, tokenizer: Tokenizer) -> None:
    assert cli.main(["generate", "--prompt", "the cat", "--system", "Be brief."]) == 0
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "the cat"}]
    want = tokenizer.hf.apply_chat_template(talk, add_generation_prompt=True)["input_ids"]
    assert engine.added[0].prompt_token_ids.tolist() == want


def test_several_sequences_of_one_prompt(engine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["generate", "--prompt", "a", "--n", "2"]) == 0
    assert capsys.readouterr().out == "--- 0 ---\na\n--- 1 ---\na\n"


def test_a_text_file_to_json_lines(engine: Any, backwards: Callable[[str], str], tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("the cat\n\nOnce upon a time\r\n", encoding="utf-8")
    out = tmp_path / "out.jsonl"
    assert cli.main(["generate", "--prompts-file", str(tmp_path / "prompts.txt"), "--output", str(out)]) == 0
    first, second = (json.loads(line) for line in out.read_text(encoding="utf-8").splitlines())
    assert first["prompt"] == "the cat"
    assert second["prompt"] == "Once upon a time"
    assert second["text"] == backwards("Once upon a time")
    assert second["finish_reason"] == "stop"
    assert second["completion_tokens"] == second["prompt_tokens"] + 1, "the end token counts"
    assert list(second) == [
        "index", "prompt", "text", "finish_reason", "prompt_tokens", "completion_tokens", "cached_tokens",
    ]  # fmt: skip


def test_a_jsonl_file_with_parameters_of_its_own(
    engine: Any, tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    talk = [{"role": "user", "content": "hi"}]
    lines: list[dict[str, Any]] = [
        {"prompt": "the cat sat on the mat", "max_tokens": 2, "id": "x"},
        {"prompt": [7, 8, 9], "logprobs": 1, "detokenize": False},
        {"messages": talk, "n": 2},
    ]
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines))
    assert cli.main(["generate", "--prompts-file", str(path), "--max-tokens", "3"]) == 0
    results = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [result["index"] for result in results] == [0, 1, 2, 2]
    assert [result["completion_tokens"] for result in results] == [2, 3, 3, 3]
    assert results[0]["id"] == "x"
    assert results[1]["logprobs"][0][0] == {"token_id": 9, "token": None, "logprob": -0.509, "rank": 2}
    assert [result["sequence"] for result in results[2:]] == [0, 1]
    assert results[2]["messages"] == talk
    want = tokenizer.hf.apply_chat_template(talk, add_generation_prompt=True)["input_ids"]
    assert engine.added[2].prompt_token_ids.tolist() == want


def test_standard_input(engine: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO('{"prompt": "a"}\n'))
    assert cli.main(["generate", "--prompts-file", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == "a"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not valid JSON"),
        ("[1]", "line 2: expected a JSON object, got list"),
        ('{"promt": "x"}', "line 2: unknown key 'promt'; did you mean 'prompt'"),
        ('{"max_tokens": 2}', "line 2: give exactly one of 'prompt' and 'messages'"),
        ('{"prompt": "x", "messages": []}', "line 2: give exactly one of 'prompt' and 'messages'"),
        ('{"messages": [{"role": "user", "content": 3}]}', "line 2: messages[0]: content must be text"),
        ('{"prompt": "x", "temperature": -1}', "line 2: temperature=-1"),
        ('{"prompt": "x", "temperature": NaN}', "line 2: temperature=nan"),
        ('{"prompt": ""}', "line 2: the prompt is empty"),
        ('{"prompt": 5}', "line 2: a prompt must be a string or a list of token IDs, got int"),
        ('{"prompt": [5, 1000]}', "line 2: prompt token 1 is 1000"),
        ('{"prompt": "\\ud800"}', "line 2: not valid Unicode"),
        ('{"messages": [{"role": "robot", "content": ""}]}', "line 2: the chat template rejects these messages"),
    ],
)
def test_a_bad_line_is_named_before_anything_runs(
    engine: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, message: str
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(f'{{"prompt": "fine"}}\n{line}\n')
    assert cli.main(["generate", "--prompts-file", str(path)]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert engine.added == []


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--prompts-file", "missing.txt"], "cannot read --prompts-file: "),
        (["--prompt", "x", "--output", "missing/out"], "cannot write --output: "),
        (["--prompt", "x", "--chat-template", "missing.jinja"], "neither Jinja text nor a readable file"),
        (["--prompt", "x", "--temperature", "-1"], "temperature=-1.0: must be"),
        (["--prompt", ""], "the prompt is empty"),
        (["--prompt", "x", "--max-model-len", "1"], "max_model_len=1: must be at least 2"),
    ],
)
def test_wrong_arguments(engine: Any, capsys: pytest.CaptureFixture[str], flags: list[str], message: str) -> None:
    assert cli.main(["generate", *flags]) == 2
    assert message in capsys.readouterr().err
    assert engine.added == []


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "one of the arguments --prompt --prompts-file is required"),
        (["--prompt", "x", "--prompts-file", "y"], "not allowed with argument"),
        (["--prompt", "x", "--temprature", "1"], "unknown flag --temprature; did you mean '--temperature'"),
        (["--prompt", "x", "--logit-bias", "3"], "is not a JSON object"),
    ],
)
def test_wrong_flags(capsys: pytest.CaptureFixture[str], flags: list[str], message: str) -> None:
    with pytest.raises(SystemExit) as error:
        cli.main(["generate", *flags])
    assert error.value.code == 2
    assert message in capsys.readouterr().err


def test_ctrl_c_keeps_what_is_finished(engine: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": [7, 7, 7, 7, 7, 7, 7]}\n{"prompt": [8]}\n{"prompt": [9]}\n')
    engine.on_step = lambda: os.kill(os.getpid(), signal.SIGINT) if engine.steps == 4 else None
    assert cli.main(["generate", "--prompts-file", str(path)]) == 130
    assert [json.loads(line)["index"] for line in capsys.readouterr().out.splitlines()] == [1, 2]
    assert engine.closed


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        cli.main(["generate", "--help"])
    text = capsys.readouterr().out
    assert error.value.code == 0
    assert 'jaxllm generate --prompt "Once upon a time"' in text
    assert all(len(line) <= 120 for line in text.splitlines())
    with pytest.raises(SystemExit):
        cli.main(["generate", "--help=all"])
    text = capsys.readouterr().out
    for flag in ("--temperature", "--max-tokens", "--logit-bias", "--max-model-len", "--seed"):
        assert f"\n  {flag}" in text


def test_every_sampling_field_has_a_flag_and_a_text() -> None:
    import argparse

    parser = argparse.ArgumentParser()
    add_sampling_flags(parser, {})
    missing = set(SamplingParams.__struct_fields__) - {action.dest for action in parser._actions}
    assert missing == {"detokenize", "seed", "stream_interval", "thinking_token_budget", *INTERNAL_FIELDS}
    assert set(field_docs(SamplingParams)) == set(SamplingParams.__struct_fields__)
    assert explicit_sampling(parser.parse_args(["--min-p", "0.1"])) == {"min_p": 0.1}


def test_a_line_that_the_code_fails_for_does_not_lose_the_others(
    engine: Any, backwards: Callable[[str], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "prompts.txt").write_text("the cat\nOnce\nupon a time\n", encoding="utf-8")
    out = tmp_path / "out.jsonl"
    original = engine.step

    def step() -> list[EngineOutput]:
        failed = [name for name in engine.running if name == "1"]
        for name in failed:
            del engine.running[name]
        refused = [
            EngineOutput(name, [], finish_reason="abort", refusal="internal error", is_fault=True) for name in failed
        ]
        return [*refused, *original()]

    engine.step = step
    assert cli.main(["generate", "--prompts-file", str(tmp_path / "prompts.txt"), "--output", str(out)]) == 1
    found = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [(line["index"], line["text"]) for line in found] == [
        (0, backwards("the cat")),
        (2, backwards("upon a time")),
    ]
    assert "request 1: internal error" in capsys.readouterr().err
