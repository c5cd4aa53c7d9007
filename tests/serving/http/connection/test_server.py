"""The server from its sockets to its first connection."""

import asyncio
import socket

import pytest
import uvicorn
import uvloop
from starlette.applications import Starlette

from jaxllm.errors import ConfigError
from jaxllm.serving.http.connection.connections import Connections
from jaxllm.serving.http.connection.server import HttpServer
from jaxllm.serving.http.limits import HttpLimits
from jaxllm.serving.options.server import ServerOptions
from jaxllm.serving.server.listener import Listener


def test_another_server_was_faster() -> None:
    """Two servers may bind one address while neither listens: both load a model, and the second says what is wrong."""

    async def serve(late: socket.socket) -> None:
        config = uvicorn.Config(Starlette(), ws="none", loop="none", lifespan="off", log_config=None)
        http = HttpServer(config, Connections(HttpLimits()))
        await http.wait_until_it_listens(asyncio.create_task(http.serve(sockets=[late])))

    with Listener(ServerOptions(host="127.0.0.1", port=0)) as late:
        assert late.port is not None
        with Listener(ServerOptions(host="127.0.0.1", port=late.port)) as first:
            first.socket.listen()
            with (
                asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
                pytest.raises(ConfigError, match="cannot listen: another process listens at this address"),
            ):
                runner.run(serve(late.socket))
