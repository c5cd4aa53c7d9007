"""When requests are sent, how many at once, and what is left when a test is cut short: against a local server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from jaxllm.serving.bench.client import LoadResult, LoadTarget
from jaxllm.serving.bench.datasets.request import LoadRequest
from jaxllm.serving.bench.load import gather_load, run_load, wait_until_ready

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
ANSWER = (
    b'data: {"choices": [{"text": "a"}]}\n\n'
    b'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}\n\ndata: [DONE]\n\n'
)


class Server:
    """Counts requests and holds them until it is told to answer."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, object]] = []
        self.heads: list[bytes] = []
        self.under_way = self.most = 0
        self.answer = asyncio.Event()
        self.status = b"200 OK"

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        self.heads.append(head)
        self.bodies.append(msgspec.json.decode(await reader.readexactly(length)))
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await self.answer.wait()
        # Others that may come meanwhile shall be seen together with this one.
        await asyncio.sleep(0.02)
        self.under_way -= 1
        writer.write(HEAD.replace(b"200 OK", self.status) + ANSWER)
        await writer.drain()
        writer.close()


@asynccontextmanager
async def serving(path: str = "/v1/completions") -> AsyncIterator[tuple[Server, LoadTarget]]:
    held = Server()
    server = await asyncio.start_server(held, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield held, LoadTarget(url=f"http://127.0.0.1:{port}{path}", model="m", request_id_prefix="run-")


async def test_no_more_are_under_way_than_allowed() -> None:
    async with serving() as (held, target):
        held.answer.set()
        answers = await gather_load(target, [LoadRequest("p", 1)] * 9, [0.0] * 9, 3)
    assert held.most == 3
    assert [answer.error for answer in answers] == [""] * 9
    # Those that had to wait here say so.
    assert sum(answer.queue_time > 0.01 for answer in answers) >= 6


async def test_requests_say_which_they_are_and_for_which_model() -> None:
    async with serving() as (held, target):
        held.answer.set()
        await gather_load(target, [LoadRequest("p", 1), LoadRequest([1, 2], 1, model="other")], [0.0, 0.0])
    assert {body["model"]: body["prompt"] for body in held.bodies} == {"m": "p", "other": [1, 2]}
    names = {line for head in held.heads for line in head.split(b"\r\n") if line.lower().startswith(b"x-request-id")}
    assert names == {b"X-Request-Id: run-0", b"X-Request-Id: run-1"}


async def test_a_test_that_is_cut_short_keeps_what_it_has() -> None:
    found: dict[int, LoadResult] = {}
    two = asyncio.Event()

    def take(index: int, answer: LoadResult) -> None:
        found[index] = answer
        if len(found) == 2:
            two.set()

    async with serving() as (held, target):
        held.answer.set()
        load = asyncio.create_task(run_load(target, [LoadRequest("p", 1)] * 3, [0.0, 0.0, 3600.0], take))
        async with asyncio.timeout(60):
            await two.wait()
        load.cancel()
        with pytest.raises(asyncio.CancelledError):
            await load
    assert sorted(found) == [0, 1]


async def test_errors_are_answers() -> None:
    async with serving() as (held, target):
        held.answer.set()
        held.status = b"503 Busy"
        (answer,) = await gather_load(target, [LoadRequest("p", 1)], [0.0])
        assert answer.error.startswith("status 503: ")
        assert (await wait_until_ready(target, LoadRequest("p", 1), 0)).error
        asyncio.get_running_loop().call_later(0.1, setattr, held, "status", b"200 OK")
        assert not (await wait_until_ready(target, LoadRequest("p", 1), 60)).error
    (answer,) = await gather_load(target, [LoadRequest("p", 1)], [0.0])
    assert answer.error.startswith("ClientConnectorError")


async def test_embeddings_are_whole_answers() -> None:
    async with serving("/v1/embeddings") as (held, target):
        held.answer.set()
        (answer,) = await gather_load(target, [LoadRequest("p", 1)], [0.0])
    # This server streams whatever it is asked.
    assert answer.error.startswith("DecodeError")
    assert "stream" not in held.bodies[0]
    assert held.bodies[0]["input"] == "p"
