"""Times of a stream, from a server that writes several chunks at once."""

import asyncio
import json

import pytest

from jaxllm.serving.bench.client import LoadResult, LoadTarget
from jaxllm.serving.bench.datasets.request import LoadRequest
from jaxllm.serving.bench.load import gather_load
from jaxllm.serving.bench.measurements import Measurements
from jaxllm.serving.bench.report import summarise

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


def events(*texts: str) -> bytes:
    return b"".join(b"data: " + json.dumps({"choices": [{"text": text}]}).encode() + b"\n\n" for text in texts)


USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 8}}\n\ndata: [DONE]\n\n'


async def ask(*writes: bytes, pause: float) -> LoadResult:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD)
        for data in writes:
            writer.write(data)
            await writer.drain()
            await asyncio.sleep(pause)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        target = LoadTarget(url=f"http://127.0.0.1:{port}/v1/completions", model="m")
        (answer,) = await gather_load(target, [LoadRequest("p", 3, 8)], [0.0])
    return answer


async def test_chunks_that_come_at_once_share_the_gap_before_them() -> None:
    answer = await ask(events("a"), events("b", "c", "d"), events("e", "f", "g") + USAGE, pause=0.3)
    assert answer.error == ""
    assert (answer.text, answer.output_tokens) == ("abcdefg", 8)
    assert len(answer.itls) == 6
    assert sum(answer.itls) == pytest.approx(answer.latency - answer.ttft)
    # Three of 0.3 s in place of one of 0.3 s alongside two of nothing.
    assert min(answer.itls) > 0.05
    measured = Measurements()
    measured.add(0, answer)
    result = summarise(measured, 1.0)
    assert result["median_itl_ms"] == pytest.approx(result["mean_itl_ms"], rel=0.5)
    assert result["tokens_per_chunk"] == pytest.approx(8 / 7)


async def test_the_first_text_ends_the_time_to_first_token() -> None:
    answer = await ask(events("", "a", "b") + USAGE, pause=0.05)
    assert answer.itls == [0.0]
    assert answer.latency == answer.ttft


async def test_an_answer_that_is_not_utf8_fails_alone() -> None:
    answer = await ask(b'data: {"choices": [{"text": "\xff"}]}\n\n', pause=0.0)
    # msgspec 0.22 and 0.23.
    assert answer.error.startswith(("UnicodeDecodeError", "DecodeError"))


async def test_without_usage_token_ids_are_counted() -> None:
    chunk = b'data: {"choices": [{"text": "abc", "token_ids": [1, 2, 3]}]}\n\ndata: [DONE]\n\n'
    assert (await ask(chunk, pause=0.0)).output_tokens == 3
