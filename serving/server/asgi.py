"""The server as an ASGI application whose engine starts and ends with it, for other servers of such: Ray Serve."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from jaxllm.config import EngineConfig
from jaxllm.serving.llm.async_llm import AsyncLLM
from jaxllm.serving.openai.adapters import load_modules
from jaxllm.serving.openai.responses.create import create_again
from jaxllm.serving.openai.stores import stores_of
from jaxllm.serving.options.server import ServerOptions, server_flags
from jaxllm.serving.server.answering import make_state
from jaxllm.serving.server.app import Application, create_app
from jaxllm.serving.server.maintenance import follow_keys
from jaxllm.serving.server.signals import cancel
from jaxllm.serving.telemetry.logs import configure_logging


class AsgiServer:
    """What `jaxllm serve` answers, without its sockets: connections and their limits are the caller's.

    The engine is loaded when the caller says that it starts (ASGI's lifespan protocol), and drained when it ends. It
    belongs to the event loop on which that happens.
    """

    def __init__(self, **options: Any) -> None:
        """Options of the engine and of the server by name, as on the command line. Raises `ConfigError`."""
        of_server = {flag.name for flag in server_flags()}
        self.options = ServerOptions(**{name: value for name, value in options.items() if name in of_server})
        self.config = EngineConfig.from_options(
            {name: value for name, value in options.items() if name not in of_server}
        )
        self.llm: AsyncLLM
        """The engines, once they are there."""
        self._app: Application
        self._keys: asyncio.Task[None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI: a request, or the beginning and the end of the application."""
        if scope["type"] == "lifespan":
            await _follow(receive, send, self.start, self.close)
        else:
            await self._app(scope, receive, send)

    async def start(self) -> None:
        """Load the model. Raises `ConfigError`, `CapacityError` and `EngineError`."""
        options, json_logs = self.options, self.options.log_format == "json"
        configure_logging(options.log_level, json_lines=json_logs)
        self.llm = await AsyncLLM.start(
            self.config,
            max_queued_requests=options.max_queued_requests,
            max_in_flight=options.max_num_queued_reqs,
            max_queued_tokens=options.max_num_queued_tokens,
            step_timeout=options.step_timeout,
            chat_template=options.chat_template,
            log_level=options.log_level,
            json_logs=json_logs,
            max_restarts=options.max_restarts,
            restart_window=options.restart_window,
            max_request_crashes=options.max_request_crashes,
        )
        try:
            state = make_state(self.llm, options)
            await load_modules(state)
            self._app = create_app(state)
        except BaseException:
            await self.llm.shutdown()
            raise
        stores_of(self._app).resume(self._app, create_again)
        self._keys = asyncio.create_task(follow_keys(self._app.state.server))

    async def close(self) -> None:
        """Let requests finish for `shutdown_timeout` seconds, and end the engine."""
        self._app.state.server.accepting = False
        await cancel(self._keys)
        await self.llm.drain(self.options.shutdown_timeout)
        await stores_of(self._app).close()
        await self.llm.shutdown()
        await self._app.state.server.end_tracing()


async def _follow(
    receive: Receive, send: Send, start: Callable[[], Awaitable[None]], close: Callable[[], Awaitable[None]]
) -> None:
    """The lifespan protocol: what fails is told, and raised."""
    for name, work in (("startup", start), ("shutdown", close)):
        await receive()
        done: Message = {"type": f"lifespan.{name}.complete"}
        try:
            await work()
        except Exception as error:
            await send({"type": f"lifespan.{name}.failed", "message": str(error)})
            raise
        await send(done)
