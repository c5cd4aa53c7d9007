"""Events from results, without a server."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message

from jaxllm.errors import EngineError
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.serving.http.connection.protocol import DIRECT_BODY
from jaxllm.serving.http.stream import DONE, EventStream, merge_streams
from jaxllm.serving.llm.output_stream import OutputStream
from jaxllm.serving.openai.generation.events import TEXT, EventFrame, UsageCounter
from jaxllm.serving.openai.protocol.chat import ChatChunk, ChatChunkChoice, ChatDelta
from jaxllm.serving.openai.protocol.completions import Completion, CompletionChoice
from jaxllm.serving.openai.protocol.generation import StreamOptions
from jaxllm.serving.text.input_processor import TextRequest
from jaxllm.serving.text.outputs import CompletionOutput, RequestOutput


class Source:
    """Streams of results that the test puts in, and the ids of those that were closed."""

    def __init__(self, count: int = 1) -> None:
        self.closed: list[str] = []
        self.streams = [OutputStream(self._request(str(index)), self._note_closed) for index in range(count)]

    def _note_closed(self, stream: OutputStream) -> None:
        self.closed.append(stream.request.request_id)

    def put(self, index: int, text: str, *, finished: bool = False) -> None:
        completion = CompletionOutput(0, text, [1], finish_reason="stop" if finished else None)
        self.streams[index].put(RequestOutput(str(index), "p", [7], [completion], finished))

    def _request(self, name: str) -> TextRequest:
        return TextRequest(request_id=name, prompt="p", prompt_token_ids=[7], params=SamplingParams(), children=[])


class TextWriter:
    """Writes the text of results, and nothing else."""

    texts = None

    def write(self, prompt_index: int, output: RequestOutput) -> bytes:
        return f"{prompt_index}{output.outputs[0].text}|".encode()

    def end(self) -> bytes:
        return b"end|"


class Client:
    """A client at the other end of ASGI, which leaves when it is told to."""

    def __init__(self) -> None:
        self.left = asyncio.Event()
        self.body = b""
        self.complete = False
        self.status = 0

    async def receive(self) -> Message:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.status = message.get("status", self.status)
        self.body += message.get("body", b"")
        self.complete = message["type"] == "http.response.body" and not message.get("more_body")


def _serve(source: Source, client: Client, connection: "Connection | None" = None) -> "asyncio.Task[None]":
    writer = TextWriter()
    response = EventStream(source.streams, writer, "request-1", direct=connection is not None)
    scope = {"type": "http", "extensions": {DIRECT_BODY: connection}}
    return asyncio.ensure_future(response(scope, client.receive, client.send))


class Connection:
    """The direct way to a client, which can be blocked."""

    def __init__(self, client: Client) -> None:
        self.open = True
        self.writes = 0
        self._client = client

    def ready(self) -> bool:
        return self.open

    def write(self, data: bytes) -> None:
        assert self._client.status == 200, "the headers come first"
        self.writes += 1
        self._client.body += data


async def _until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_a_stream_ends_with_done() -> None:
    source, client = Source(), Client()
    serving = _serve(source, client)
    source.put(0, "a")
    await _until(lambda: client.body)
    source.put(0, "b", finished=True)
    await serving
    assert client.body == b"0a|0b|end|" + DONE
    assert (client.status, client.complete, source.closed) == (200, True, [])


async def test_results_go_to_the_connection_without_a_turn_of_the_event_loop() -> None:
    source, client = Source(), Client()
    connection = Connection(client)
    serving = _serve(source, client, connection)
    source.put(0, "a")
    await _until(lambda: client.body)
    await asyncio.sleep(0)
    source.put(0, "b")
    source.put(0, "c")
    assert client.body == b"0a|0b|0c|"
    connection.open = False
    source.put(0, "d")
    source.put(0, "e")
    assert client.body == b"0a|0b|0c|", "a slow client is left to the task, which waits for it"
    connection.open = True
    source.put(0, "f")
    assert connection.writes == 2, "nothing overtakes what waits"
    await _until(lambda: client.body.endswith(b"0def|"))
    await asyncio.sleep(0)
    source.put(0, "g", finished=True)
    assert connection.writes == 3
    await serving
    assert client.body == b"0a|0b|0c|0def|0g|end|" + DONE
    assert (client.complete, source.closed) == (True, [])


async def test_an_error_while_writing_directly_ends_the_stream_and_its_request() -> None:
    source, client = Source(), Client()
    serving = _serve(source, client, Connection(client))
    source.put(0, "a")
    await _until(lambda: client.body)
    await asyncio.sleep(0)
    source.streams[0].put(RequestOutput("0", "p", [7], [], finished=False))
    await serving
    assert client.body.startswith(b'0a|data: {"error":')
    assert client.body.count(b"internal error") == 1
    assert (client.complete, source.closed) == (True, ["0"])


async def test_several_streams_never_write_directly() -> None:
    source, client = Source(2), Client()
    connection = Connection(client)
    serving = _serve(source, client, connection)
    for index in range(2):
        source.put(index, "a")
        await _until(lambda index=index: client.body.count(b"|") == index + 1)
        source.put(index, "b", finished=True)
    await serving
    assert connection.writes == 0


async def test_results_that_wait_merge() -> None:
    source, client = Source(), Client()
    for text in "abc":
        source.put(0, text)
    source.put(0, "d", finished=True)
    await _serve(source, client)
    assert client.body == b"0abcd|end|" + DONE


async def test_a_client_that_leaves_ends_its_requests() -> None:
    source, client = Source(3), Client()
    serving = _serve(source, client)
    source.put(1, "a")
    await _until(lambda: client.body)
    client.left.set()
    await serving
    assert sorted(source.closed) == ["0", "1", "2"]
    assert not client.complete


async def test_an_error_in_the_stream_is_its_last_event() -> None:
    source, client = Source(2), Client()
    serving = _serve(source, client)
    source.put(0, "a")
    await _until(lambda: client.body)
    source.streams[1].fail(EngineError("the engine is dead"))
    await serving
    text, event, end = client.body.decode().split("|")[0], client.body.split(b"|", 1)[1], client.complete
    assert text == "0a"
    error = json.loads(event.removeprefix(b"data: "))["error"]
    assert error == {
        "message": "the engine is dead", "type": "server_error", "param": None, "code": "engine_unavailable"
    }  # fmt: skip
    assert end
    assert source.closed == ["0"], "the failed one needs no abort"


async def test_an_unexpected_error_tells_nothing_of_the_inside(caplog: pytest.LogCaptureFixture) -> None:
    source, client = Source(), Client()
    source.streams[0].fail(KeyError("secret detail"))
    await _serve(source, client)
    assert b"internal error" in client.body
    assert b"secret" not in client.body
    assert "secret detail" in caplog.text
    assert "request-1" in caplog.text


async def test_several_streams_come_as_they_are_ready() -> None:
    source = Source(3)
    seen: list[tuple[int, str]] = []
    async with aclosing(merge_streams(source.streams)) as results:
        for index, text in ((2, "a"), (0, "b"), (2, "c"), (1, "d")):
            source.put(index, text)
            found, output = await anext(results)
            seen.append((found, output.outputs[0].text))
    assert seen == [(2, "a"), (0, "b"), (2, "c"), (1, "d")]


def _events(options: StreamOptions | None, *, force_usage: bool = False) -> list[Any]:
    counter = UsageCounter([3, 4])
    empty = Completion(id="cmpl-1", created=5, model='a "choices":[] b', system_fingerprint="fp", choices=[])
    frame = EventFrame(empty, counter, options, force_usage=force_usage)
    completion = CompletionOutput(0, "x", [1, 2])
    counter.add(0, RequestOutput("r", None, [7], [completion], False, num_cached_tokens=2))
    choice = CompletionChoice(index=0, text="x", logprobs=None, finish_reason=None)
    data: Sequence[bytes] = (frame.event(choice) + frame.end()).split(b"\n\n")[:-1]
    return [json.loads(event.removeprefix(b"data: ")) for event in data]


@pytest.mark.parametrize(
    "options", [None, StreamOptions(include_usage=True), StreamOptions(include_usage=True, continuous_usage_stats=True)]
)
@given(text=st.text(), index=st.integers(0, 2000))
def test_prepared_events_are_what_the_model_of_the_event_says(
    options: StreamOptions | None, text: str, index: int
) -> None:
    name = f"{TEXT} demo"
    for empty, make in (
        (Completion(id="i", created=5, model=name, system_fingerprint="fp", choices=[]), _completion_choice),
        (ChatChunk(id="i", created=5, model=name, system_fingerprint="fp", choices=[]), _chat_choice),
    ):
        frame = EventFrame(empty, UsageCounter([3]), options, force_usage=False)
        prepared = frame.text_event(make(index, TEXT))
        if options is not None and options.continuous_usage_stats:
            assert prepared is None
        else:
            assert prepared is not None
            event = prepared.event(text)
            assert event == frame.event(make(index, text))
            chunk = msgspec.json.decode(event.removeprefix(b"data: "), type=type(empty))
            assert chunk.choices == [make(index, text)]
            assert chunk.model == name


def _completion_choice(index: int, text: str) -> CompletionChoice:
    return CompletionChoice(index=index, text=text, logprobs=None, finish_reason=None)


def _chat_choice(index: int, text: str) -> ChatChunkChoice:
    return ChatChunkChoice(index=index, delta=ChatDelta(content=text))


USAGE = {
    "prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9, "prompt_tokens_details": {"cached_tokens": 2},
}  # fmt: skip


@pytest.mark.parametrize("options", [None, StreamOptions(), StreamOptions(continuous_usage_stats=True)])
def test_no_usage_unless_asked_for(options: StreamOptions | None) -> None:
    (event,) = _events(options)
    assert "usage" not in event
    assert event["model"] == 'a "choices":[] b'
    assert event["choices"][0]["text"] == "x"


def test_usage_at_the_end() -> None:
    event, last = _events(StreamOptions(include_usage=True))
    assert event["usage"] is None
    assert (last["choices"], last["usage"]) == ([], USAGE)
    _, forced = _events(None, force_usage=True)
    assert forced["usage"] == USAGE


def test_usage_in_every_event() -> None:
    event, last = _events(StreamOptions(include_usage=True, continuous_usage_stats=True))
    assert event["usage"] == last["usage"] == USAGE
