"""Comments between events, before a connection that may be slow."""

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest

from jaxllm.serving.http.keep_alive import COMMENT, KeepAlive

INTERVAL = 0.02


class Connection:
    """Takes one part at a time, each as soon as its reader lets it."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self._busy = False

    async def send(self, message: MutableMapping[str, Any]) -> None:
        assert not self._busy, "two parts at once"
        self._busy = True
        await self.reads.wait()
        self.sent.append(message["body"])
        self._busy = False


@pytest.mark.asyncio
async def test_a_slow_reader_gets_one_part_at_a_time() -> None:
    connection, keep_alive = Connection(), KeepAlive(INTERVAL)
    async with keep_alive.watching(connection.send):
        connection.reads.clear()
        event = asyncio.ensure_future(keep_alive.send(connection.send, b"event"))
        await asyncio.sleep(5 * INTERVAL)
        assert not connection.sent
        connection.reads.set()
        await event
    # What waits for its reader needs no comment. A slow machine may be silent after it.
    assert connection.sent[0] == b"event"


@pytest.mark.asyncio
async def test_an_event_waits_for_a_comment() -> None:
    connection, keep_alive = Connection(), KeepAlive(INTERVAL)
    async with keep_alive.watching(connection.send):
        connection.reads.clear()
        await asyncio.sleep(5 * INTERVAL)
        event = asyncio.ensure_future(keep_alive.send(connection.send, b"event"))
        await asyncio.sleep(INTERVAL)
        connection.reads.set()
        await event
    assert connection.sent[:2] == [COMMENT, b"event"]


@pytest.mark.asyncio
async def test_whatever_is_written_past_it_counts() -> None:
    connection, keep_alive = Connection(), KeepAlive(50 * INTERVAL)
    async with keep_alive.watching(connection.send):
        for _ in range(30):
            keep_alive.active = True
            await asyncio.sleep(INTERVAL)
    assert connection.sent == []


@pytest.mark.asyncio
async def test_without_an_interval_nothing_comes() -> None:
    connection, keep_alive = Connection(), KeepAlive(0.0)
    async with keep_alive.watching(connection.send):
        await asyncio.sleep(5 * INTERVAL)
    assert connection.sent == []
