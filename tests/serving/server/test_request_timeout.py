"""Requests end when their time is over, wherever they are by then, and nobody else notices."""

import asyncio
import json
import re
import socket
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import anthropic
import httpx
import numpy as np
import openai
import pytest

from jaxllm.errors import RequestError, RequestTimeoutError
from jaxllm.serving.http.deadline import Deadline
from jaxllm.serving.llm.output_stream import OutputStream
from jaxllm.serving.pooling.outputs import PoolingOutput, PoolingRequestOutput
from jaxllm.serving.pooling.processor import PooledResult
from jaxllm.serving.text.input_processor import RequestProgress
from tests.serving.server_process import LONG, SMALL, ServerProcess, Stream, running

SOON = {"timeout": 0.3}
LIMIT = 60.0
MESSAGE = "the request was not answered within 0.3 s"


class Clock:
    """Deadlines that note what they end."""

    def __init__(self) -> None:
        self.ended: list[Any] = []
        self.places: list[str] = []

    def begin(self, seconds: float) -> Deadline:
        return Deadline(seconds, lambda stream, error: self.ended.append((stream, str(error))), self.places.append)


def stream_with(tokens: int = 0) -> OutputStream:
    progress = RequestProgress(first_token_seconds=0.1 if tokens else None)
    request = SimpleNamespace(progress=progress)
    return OutputStream(cast("Any", request), lambda _: None)


async def test_a_handler_that_waits_is_ended() -> None:
    clock, left = Clock(), []
    began = time.monotonic()

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            left.append(time.monotonic() - began)

    with pytest.raises(RequestTimeoutError, match=r"within 0.05 s \(--request-timeout\)"):
        async with clock.begin(0.05).enforced():
            await wait()
    assert clock.places == ["preparation"]
    assert 0.04 < left[0] < 5


async def test_streams_end_instead_of_the_handler_and_also_after_it() -> None:
    clock = Clock()
    deadline = clock.begin(0)
    async with deadline.enforced():
        deadline.shorten(0.05)
        streams = [stream_with(), stream_with(3)]
        deadline.follow(streams)
    await asyncio.sleep(0.2)
    assert sorted(map(id, streams)) == sorted(id(stream) for stream, _ in clock.ended)
    assert {message for _, message in clock.ended} == {"the request was not answered within 0.05 s"}
    assert clock.places == ["decode"]
    with pytest.raises(RequestTimeoutError):
        deadline.check()


async def test_texts_of_a_pooling_model_end_as_streams_do() -> None:
    clock = Clock()
    deadline = clock.begin(0.05)
    async with deadline.enforced():
        pooled = [PooledResult(cast("Any", None), lambda _: None) for _ in range(3)]
        deadline.follow(pooled)
        result = PoolingRequestOutput("a", PoolingOutput(np.zeros(1, np.float32)), [1])
        pooled[0].put(result)
        await asyncio.sleep(0.2)
    assert {id(each) for each, _ in clock.ended} == set(map(id, pooled[1:]))
    assert clock.places == ["first_token"]
    pooled[1].fail(RequestTimeoutError("late"))
    with pytest.raises(RequestTimeoutError, match="late"):
        await pooled[1].get()
    assert await pooled[0].get() is result


async def test_what_has_ended_in_time_is_left_alone() -> None:
    clock = Clock()
    deadline = clock.begin(0.05)
    async with deadline.enforced():
        stream = stream_with()
        deadline.follow([stream])
    stream.close()
    # As a transcription does, which asks the engine again and again.
    deadline.follow([again := stream_with()])
    again.close()
    async with clock.begin(0.05).enforced():
        pass
    await asyncio.sleep(0.1)
    assert not clock.ended
    assert not clock.places


async def test_others_timeouts_are_not_ours() -> None:
    with pytest.raises(TimeoutError):
        async with Clock().begin(5).enforced(), asyncio.timeout(0.01):
            await asyncio.Event().wait()


async def test_requests_may_ask_for_less_only() -> None:
    clock = Clock()
    for seconds, message in ((0.0, "more than 0"), (float("nan"), "more than 0"), (5.1, "at most 5 s")):
        with pytest.raises(RequestError, match=message):
            clock.begin(5).shorten(seconds)
    clock.begin(5).shorten(5)
    clock.begin(0).shorten(1e9)


# One server for all that follows.


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("server") / "log"
    with running(log, *SMALL, f"--request-timeout={LIMIT:g}", "--timeout-body=30") as found:
        yield found


@pytest.fixture
def client(server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=120) as found:
        yield found


def counts(client: httpx.Client) -> dict[str, float]:
    text = client.get("/metrics").text
    found = dict(re.findall(r'jaxllm:request_timeouts_total\{.*place="(\w+)".*\} (\S+)', text))
    ended = re.search(r'request_success_total\{.*finished_reason="timeout".*\} (\S+)', text)
    usage = re.search(r"jaxllm:kv_cache_usage_perc\{.*\} (\S+)", text)
    assert ended is not None
    assert usage is not None
    return {**{name: float(count) for name, count in found.items()}, "ended": float(ended[1]), "pages": float(usage[1])}


def wait_until_empty(client: httpx.Client) -> dict[str, float]:
    deadline = time.monotonic() + 30
    while (found := counts(client))["pages"] or client.get("/load").json()["server_load"]:
        assert time.monotonic() < deadline, found
        time.sleep(0.02)
    return found


def test_clients_of_openai_get_it_once(server: ServerProcess, client: httpx.Client) -> None:
    """Whole answers and streams; the neighbour's text is the one it has alone, and its pages are free at once."""
    plain: Any = {"model": "demo", "prompt": "The cat", "max_tokens": 400, "temperature": 0, "extra_body": {}}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=3) as patient:
        alone = patient.completions.create(**plain).choices[0].text
        before = counts(client)
        neighbour = Stream(client, {**plain, "stream": True, "ignore_eos": False})
        long: Any = {**LONG, "model": "demo"}
        extra = {"ignore_eos": True, **SOON}
        del long["ignore_eos"]
        with pytest.raises(openai.InternalServerError, match=MESSAGE) as caught:
            patient.completions.create(**{**long, "stream": False}, extra_body=extra)
        assert (caught.value.status_code, caught.value.code) == (504, "request_timeout")
        with (
            pytest.raises(openai.APIError, match=MESSAGE),
            patient.completions.create(**long, extra_body=extra) as chunks,
        ):
            for _ in chunks:
                pass
        texts = [json.loads(event)["choices"][0]["text"] for event in neighbour.rest()[:-1]]
        assert "".join(texts) == alone
        after = wait_until_empty(client)
        # Without another try by the client, though it would make three.
        assert after["first_token"] + after["decode"] == before["first_token"] + before["decode"] + 2
        assert after["ended"] >= before["ended"] + 16
        with pytest.raises(openai.BadRequestError, match=r"timeout=61: this server allows at most 60 s"):
            patient.completions.create(**{**plain, "extra_body": {"timeout": 61}})


def test_a_request_ends_in_the_queue(client: httpx.Client) -> None:
    before = counts(client)
    stream = Stream(client, LONG)
    answer = client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1, "timeout": 0.05})
    assert answer.status_code == 504
    assert answer.headers["x-should-retry"] == "false"
    assert stream.rest()[-1] == b"[DONE]"
    after = wait_until_empty(client)
    # On a busy machine its prompt may not even be read within that time.
    places = ("preparation", "first_token")
    assert sum(after[place] for place in places) == sum(before[place] for place in places) + 1


def test_clients_of_anthropic_and_background_responses(server: ServerProcess, client: httpx.Client) -> None:
    long: Any = {"max_tokens": 450, "messages": [{"role": "user", "content": "Tell me a story."}], "model": "demo"}
    with (
        anthropic.Anthropic(base_url=server.url, api_key="none") as asked,
        pytest.raises(anthropic.APIStatusError, match=MESSAGE.replace("0.3", "0.02")) as caught,
    ):
        asked.messages.create(**long, extra_body={"timeout": 0.02})
    assert caught.value.status_code == 504
    assert cast("Any", caught.value.body)["error"]["type"] == "timeout_error"
    # So much that it has been taken by then, by an engine that cannot be done with it.
    body = {"input": "Tell me a story.", "max_output_tokens": 450, "background": True, "timeout": 2}
    engine = server.engine()
    engine.suspend()
    try:
        made = client.post("/v1/responses", json=body).json()
        deadline = time.monotonic() + 30
        while (found := client.get(f"/v1/responses/{made['id']}").json())["status"] in ("queued", "in_progress"):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        engine.resume()
    assert found["status"] == "failed"
    assert "was not answered within 2 s" in found["error"]["message"]
    wait_until_empty(client)


def test_each_line_of_a_batch_has_its_own_time(server: ServerProcess, client: httpx.Client) -> None:
    before = counts(client)
    long = {name: value for name, value in LONG.items() if name != "stream"}
    bodies = {"late": {**long, "timeout": 0.05}, "short": {"prompt": "x", "max_tokens": 1, "timeout": LIMIT},
              "greedy": {"prompt": "x", "max_tokens": 1, "timeout": LIMIT + 1}}  # fmt: skip
    lines = [
        json.dumps({"custom_id": name, "method": "POST", "url": "/v1/completions", "body": body})
        for name, body in bodies.items()
    ]
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as asked:
        file = asked.files.create(file=("in.jsonl", "\n".join(lines).encode()), purpose="batch")
        made = asked.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
        deadline = time.monotonic() + 60
        while (batch := asked.batches.retrieve(made.id)).status != "completed":
            assert time.monotonic() < deadline, batch
            time.sleep(0.02)
        found = {}
        for name in (batch.output_file_id, batch.error_file_id):
            assert name is not None
            for line in asked.files.content(name).text.splitlines():
                answer = json.loads(line)
                found[answer["custom_id"]] = answer["response"]["status_code"], str(answer["response"]["body"])
        assert {name: status for name, (status, _) in found.items()} == {"late": 504, "short": 200, "greedy": 400}
        assert "was not answered within 0.05 s" in found["late"][1]
    after = wait_until_empty(client)
    assert after["first_token"] + after["decode"] == before["first_token"] + before["decode"] + 1


def test_conversations_of_one_request_end_together(client: httpx.Client) -> None:
    before = counts(client)
    conversation = [{"role": "user", "content": "Tell me a story."}]
    body = {"messages": [conversation] * 3, "max_tokens": 450, "ignore_eos": True, "timeout": 0.05}
    answer = client.post("/v1/chat/completions/batch", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "request_timeout")
    assert wait_until_empty(client)["ended"] == before["ended"] + 3


def test_it_counts_from_the_headers_also_for_a_body_that_comes_late(server: ServerProcess) -> None:
    body = json.dumps({"prompt": "x", "max_tokens": 400, "timeout": 0.2}).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode())
        time.sleep(0.5)
        connection.sendall(body)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 504 ")
    assert b"within 0.2 s" in answer
