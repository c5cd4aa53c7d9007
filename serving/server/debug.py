"""For an operator who wants to know what a server is doing: requests, pages and queues, when asked."""

import asyncio
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from jaxllm.engine.inspection import EngineSnapshot
from jaxllm.errors import EngineError
from jaxllm.serving.http.body.base import Answer
from jaxllm.serving.http.errors import not_enabled
from jaxllm.serving.http.identity import num_http_requests
from jaxllm.serving.http.responses import json_response
from jaxllm.serving.http.state import server_of
from jaxllm.serving.ipc.client.control import called

ANSWER_SECONDS = 2.0
"""An engine that does not answer within this time is in a long step, or hangs."""


class EngineReport(Answer, kw_only=True):
    """One engine, as the process that answers knows it, and as it knows itself."""

    engine: int
    """Its number."""
    pid: int | None
    """Its process; null while there is none."""
    in_flight: int
    """Requests that this API server process waits for."""
    queued_tokens: int
    """Prompt tokens of those without a token yet."""
    problem: str | None = None
    """Why there is no state."""
    state: EngineSnapshot | None = None


class DebugState(Answer, kw_only=True):
    """The state of the server. Lengths and ids; no texts."""

    accepting: bool
    """Whether new requests are taken."""
    http_requests: int
    """Requests of clients that this API server process has at the engines."""
    engines: list[EngineReport]


async def debug_state(request: Request) -> Response:
    """Tell what runs and waits, and who holds which pages. Costs nothing until it is asked for."""
    server = server_of(request)
    if not server.access.needs_key and not server.options.server_dev_mode:
        # Anybody would see the addresses of all clients.
        raise not_enabled(request.url.path, "--api-key or --server-dev-mode")
    reports = await asyncio.gather(*map(_report, server.llm.engines.engines))
    state = DebugState(accepting=server.accepting, http_requests=num_http_requests(server), engines=reports)
    return json_response(state)


async def _report(engine: Any) -> EngineReport:
    state, problem = None, None
    if not engine.health.is_up:
        problem = "the engine is not there"
    else:
        try:
            answer = await asyncio.wait_for(engine.ask(called("debug_state")), ANSWER_SECONDS)
            state = msgspec.json.decode(answer, type=EngineSnapshot)
        except TimeoutError:
            problem = f"no answer within {ANSWER_SECONDS:g} s: a long step, or a hang"
        except EngineError as error:
            problem = str(error)
    return EngineReport(
        engine=engine.number,
        pid=engine.pid if engine.health.is_up else None,
        in_flight=len(engine),
        queued_tokens=engine.num_queued_tokens,
        problem=problem,
        state=state,
    )
