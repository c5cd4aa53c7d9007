"""The files of a batch: what is checked before anything runs, and what is found again after an interruption."""

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxllm.errors import ConfigError, RequestError
from jaxllm.serving.openai.batches.input import BatchInput
from jaxllm.serving.openai.batches.lines import BatchAnswer, BatchError, BatchResponse
from jaxllm.serving.openai.batches.record import BatchRecord

URLS = ("/v1/chat/completions", "/v1/completions")


def line(custom_id: Any = "a", **changes: Any) -> str:
    made = {"custom_id": custom_id, "method": "POST", "url": URLS[1], "body": {"prompt": "x"}, **changes}
    return json.dumps({name: value for name, value in made.items() if value is not ...})


def checked(tmp_path: Path, text: str | bytes) -> BatchInput:
    file = tmp_path / "in.jsonl"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    batch = BatchInput(str(file), URLS)
    try:
        batch.check()
    except RequestError:
        batch.__exit__()
        raise
    return batch


def answer(custom_id: str) -> BatchAnswer:
    return BatchAnswer("batch_req_1", custom_id, BatchResponse(200, "r", msgspec.Raw(b'{"text": "\\n"}')), None)


def test_requests_in_order_but_for_those_that_are_done(tmp_path: Path) -> None:
    text = "\ufeff" + "\n\n".join([line("a"), line("b", url=URLS[0]), line("c")])
    with checked(tmp_path, text) as batch:
        assert batch.ids == {"a": 1, "b": 3, "c": 5}
        assert [each.custom_id for each in batch.requests({"b"})] == ["a", "c"]
        (second,) = batch.requests({"a", "c"})
        assert (second.url, json.loads(bytes(second.body))) == (URLS[0], {"prompt": "x"})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("{", "not valid JSON"),
        ("[1]", "expected a JSON object, got list"),
        (line(...), "custom_id"),
        (line(7), "custom_id"),
        (line(""), "custom_id is empty"),
        (line(method="GET"), "method 'GET': must be 'POST'"),
        (line(url="/v1/completion"), "did you mean '/v1/completions'"),
        (line(url="/metrics"), "must be one of"),
        (line(body=[1]), "body: expected a JSON object"),
        (line(body=...), "body"),
        (line(body={"stream": True}), "cannot be streamed"),
        (line(custom_ids="b"), "unknown field"),
        (line("first"), "custom_id 'first' is already used in line 1"),
        ("[" * 100_000, "not valid JSON|nested too deeply"),
    ],
)
def test_a_wrong_line_is_named_before_anything_runs(tmp_path: Path, wrong: str, message: str) -> None:
    with pytest.raises(RequestError, match=f"in.jsonl: line 3: .*({message})"):
        checked(tmp_path, "\n".join([line("first"), "", wrong, line("last")]))


def test_many_wrong_lines_are_counted(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"line 5: .*; and 3 more invalid lines"):
        checked(tmp_path, "\n".join(["{"] * 8))
    with pytest.raises(RequestError, match="contains no requests"):
        checked(tmp_path, "\n \n")
    with pytest.raises(RequestError, match="not valid JSON"):
        checked(tmp_path, b"\xff\xfe")


def test_standard_input_can_be_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(line().encode())))
    with BatchInput("-", URLS) as batch:
        batch.check()
        assert [each.custom_id for each in batch.requests(())] == ["a"]


@settings(max_examples=40)
@given(cut=st.integers(1, 300), names=st.lists(st.text(min_size=1), min_size=1, max_size=5, unique=True))
def test_what_is_not_whole_is_cut_off(tmp_path_factory: pytest.TempPathFactory, cut: int, names: list[str]) -> None:
    file = tmp_path_factory.mktemp("record") / "out.jsonl"
    with BatchRecord(str(file), names) as record:
        assert record.done == set()
        for name in names:
            record.add(answer(name))
    whole = file.read_bytes()
    file.write_bytes(whole[: max(0, len(whole) - cut)])
    with BatchRecord(str(file), names) as record:
        assert [name for name in names if name in record.done] == names[: len(record.done)]
        assert file.read_bytes() == b"".join(whole.splitlines(keepends=True)[: len(record.done)])
        for name in names:
            if name not in record.done:
                record.add(answer(name))
    assert file.read_bytes() == whole


def test_a_file_of_something_else_stays_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    known = msgspec.json.encode(answer("a")).decode() + "\n"
    for text, message in (
        ("precious\nwords", "line 1 is not a batch response"),
        ("precious words, without an end of line", "line 1 is not a batch response"),
        (known + known, "line 2 answers 'a' a second time"),
        (known.replace('"a"', '"z"'), "line 1 answers 'z', which is not in the input"),
        (line("a") + "\n", "line 1 is not a batch response"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=message):
            BatchRecord(str(file), ["a"])
        assert file.read_text() == text
    with pytest.raises(ConfigError, match="cannot write"):
        BatchRecord(str(tmp_path), ["a"])


def test_two_processes_do_not_write_to_one_file(tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    code = f"from jaxllm.serving.openai.batches.record import BatchRecord; BatchRecord({str(file)!r}, ['a'])"
    with BatchRecord(str(file), ["a"]):
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "another process is writing to it" in other.stderr


def test_the_lines_are_those_of_openai(tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    with BatchRecord(str(file), ["a", "b"]) as record:
        record.add(answer("a"))
        record.add(BatchAnswer("batch_req_2", "b", None, BatchError("internal_error", "it broke")))
    first, second = map(json.loads, file.read_text().splitlines())
    assert first == {
        "id": "batch_req_1",
        "custom_id": "a",
        "response": {"status_code": 200, "request_id": "r", "body": {"text": "\n"}},
        "error": None,
    }
    assert (second["response"], second["error"]) == (None, {"code": "internal_error", "message": "it broke"})


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_said(tmp_path: Path) -> None:
    with BatchRecord("/dev/full", ["a"]) as record, pytest.raises(ConfigError, match="No space left"):
        record.add(answer("a"))
