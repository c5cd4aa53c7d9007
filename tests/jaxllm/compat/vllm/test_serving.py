"""Programs with a server or routes of their own use vLLM's helpers as with vLLM."""

import asyncio
import signal
import subprocess
import sys
from typing import Any

import pytest
from starlette.requests import Request

from jaxllm.entrypoints.serve.utils.api_utils import with_cancellation

SERVER = """
import asyncio
from jaxllm.entrypoints.launchers.launcher import serve_http

async def app(scope, receive, send):
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            # Handlers are there before the application starts.
            print("starts", flush=True)
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return

async def main():
    ended = await serve_http(app, None, host="127.0.0.1", port=0, log_level="error", h11_max_header_count=256)
    await ended
    print("cleaned up", flush=True)

asyncio.run(main())
print("done")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_and_not_the_program(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        try:
            assert program.stdout.readline() == "starts\n"
            program.send_signal(number)
            assert program.stdout.read().split("\n") == ["cleaned up", "done", ""]
            assert program.wait(60) == 0
        finally:
            program.kill()


async def test_a_route_is_cancelled_when_its_client_leaves() -> None:
    began, left, cancelled = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def receive() -> dict[str, Any]:
        await left.wait()
        return {"type": "http.disconnect"}

    @with_cancellation
    async def route(body: str, raw_request: Request) -> str:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return body

    @with_cancellation
    async def quick(body: str, raw_request: Request) -> str:
        return body

    request = Request({"type": "http"}, receive)
    assert await quick("answer", request) == "answer"
    answer = asyncio.ensure_future(route("never", raw_request=request))
    await began.wait()
    left.set()
    assert await asyncio.wait_for(answer, 60) is None
    assert cancelled.is_set()
