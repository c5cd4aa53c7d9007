"""Bodies of megabytes: refused before work in proportion to them is done, and nobody else waits for it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jaxllm.serving.http.body import read as module
from jaxllm.serving.http.body.read import JsonSize, json_size
from tests.serving.http.connection.test_serve import probes, resident
from tests.serving.server_process import SMALL, ServerProcess, running

MIB = 2**20
WORST_SECONDS = 0.4
"""That a probe may take meanwhile; a busy machine adds some, and it was seconds before."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    log: Path = tmp_path_factory.mktemp("server") / "log"
    with running(log, "demo", *SMALL, "--max-body-size", str(32 * MIB)) as process:
        yield process
        assert "Traceback" not in process.log


@pytest.fixture(scope="module")
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60, headers={"Content-Type": "application/json"}) as client:
        yield client


def listed(begin: str, item: str, end: str, megabytes: float) -> bytes:
    """JSON with as many items as make this size."""
    return f"{begin}{','.join([item] * int(megabytes * MIB / (len(item) + 1)))}{end}".encode()


MESSAGE = '{"role":"user","content":"a"}'
PART = '{"type":"text","text":"a"}'
ONE = f'"messages":[{MESSAGE}]'
LONG = json.dumps("hello world " * 340_000)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", listed('{"messages":[', MESSAGE, "]}", 4)),
        ("/v1/chat/completions", listed('{"messages":[', MESSAGE, "]}", 30)),
        ("/v1/chat/completions", listed('{"messages":[{"role":"user","content":[', PART, "]}]}", 4)),
        ("/v1/chat/completions", listed(f'{{{ONE},"tools":[', '{"function":{"name":"a"}}', "]}", 4)),
        ("/v1/chat/completions", listed(f'{{{ONE},"metadata":{{"a":[', "[]", "]}}", 4)),
        ("/v1/messages", listed('{"max_tokens":1,"messages":[', MESSAGE, "]}", 4)),
        ("/v1/responses", listed('{"input":[', MESSAGE, "]}", 4)),
        ("/tokenize", listed('{"messages":[', MESSAGE, "]}", 4)),
        ("/tokenize", f'{{"prompt":{LONG}}}'.encode()),
        ("/v1/completions", f'{{"prompt":{LONG}}}'.encode()),
        ("/v1/completions", f'{{"prompt":["a",{LONG}]}}'.encode()),
        ("/v1/completions", listed('{"prompt":[', "1", "]}", 4)),
        ("/v1/completions", listed('{"prompt":[', "[1]", "]}", 4)),
        ("/v1/completions", listed('{"prompt":"a","allowed_token_ids":[', "1", "]}", 0.9)),
        ("/v1/completions", listed('{"prompt":"a","stop":[', '"abc"', "]}", 3)),
        ("/v1/completions", listed('{"prompt":[', "1", ",NaN]}", 1)),
        ("/detokenize", listed('{"tokens":[', "1", "]}", 0.9)),
    ],
)  # fmt: skip
def test_others_are_served_meanwhile(http: httpx.Client, server: ServerProcess, path: str, body: bytes) -> None:
    before = resident(server)
    with probes(http) as seconds:
        answer = http.post(path, content=body)
    assert answer.status_code == (200 if b"allowed" in body else 400)
    assert len(answer.content) < 2000
    assert max(seconds) < WORST_SECONDS
    # Three times the body: received in parts, as one, and decoded.
    assert resident(server) - before < 3 * len(body) + 32 * MIB


@pytest.mark.parametrize(
    ("path", "begin", "item", "end", "most", "field"),
    [
        ("/v1/chat/completions", '{"messages":[', MESSAGE, "]}", 8192, "messages"),
        ("/v1/messages", '{"max_tokens":1,"messages":[', MESSAGE, "]}", 8192, "messages"),
        ("/v1/messages", f'{{{ONE},"max_tokens":1,"system":[', '{"type":"text","text":""}', "]}", 4096, "system"),
        ("/v1/responses", '{"input":[', MESSAGE, "]}", 8192, "input"),
        ("/v1/chat/completions", f'{{{ONE},"tools":[', '{"function":{"name":"a"}}', "]}", 1024, "tools"),
        ("/v1/completions", '{"prompt":"a","bad_words":[', '"a"', "]}", 16384, "bad_words"),
    ],
)
def test_lists_are_bounded(
    http: httpx.Client, path: str, begin: str, item: str, end: str, most: int, field: str
) -> None:
    answer = http.post(path, content=f"{begin}{','.join([item] * (most + 1))}{end}".encode())
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert message.startswith(field)
    assert str(most) in message


def test_long_names_are_not_repeated(http: httpx.Client) -> None:
    name = "x" * MIB
    for body in ({"prompt": "a", "model": name}, {"prompt": "a", name: 1, "temprature": 1}, {"prompt": {name: 1}}):
        answer = http.post("/v1/completions", json=body)
        assert answer.status_code in (400, 404)
        assert len(answer.content) < 10_000


def test_a_large_prompt_that_fits_is_answered(http: httpx.Client) -> None:
    """Taken to the thread for large bodies, with a field that makes it large."""
    body = {"prompt": "Once", "max_tokens": 2, "temperature": 0}
    plain = http.post("/v1/completions", json=body).json()["choices"][0]["text"]
    large = http.post("/v1/completions", json={**body, "user": "x" * 200_000}).json()["choices"][0]["text"]
    assert large == plain


TEXTS = st.text('ab"\\[]{},:\n é')
VALUES = st.recursive(
    st.none() | st.integers() | TEXTS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=30
)


def size_of(value: Any) -> JsonSize:
    if not isinstance(value, (dict, list)):
        return JsonSize(0, 0)
    inside = [size_of(item) for item in (value.values() if isinstance(value, dict) else value)]
    return JsonSize(
        1 + sum(each.containers for each in inside), max(0, len(value) - 1) + sum(each.commas for each in inside)
    )


@pytest.mark.parametrize("block", [1, 2, 3, 16, 2**18])
@given(value=VALUES, readable=st.booleans())
@example(value=["\\", '\\"', '\\\\",['], readable=True)
def test_it_counts_what_is_outside_strings(value: Any, readable: bool, block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCK", block)
        assert json_size(json.dumps(value, ensure_ascii=readable).encode()) == size_of(value)


@given(st.binary())
def test_what_is_no_json_does_no_harm(text: bytes) -> None:
    assert json_size(text).containers <= len(text)
