"""Answers requests with what servers say: which one is asked, and what if one fails."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from jaxllm.errors import EngineError
from jaxllm.serving.affinity.prefixes import Prompt
from jaxllm.serving.fleet import transfer
from jaxllm.serving.fleet.call import Call, json_object
from jaxllm.serving.fleet.choice import Choice
from jaxllm.serving.fleet.exchange import (
    OVERLOADED,
    UNANSWERED,
    Headers,
    UnansweredError,
    asked,
    counted,
    pass_back,
    passed_on,
)
from jaxllm.serving.fleet.metrics import RouterMetrics
from jaxllm.serving.fleet.prefill import Prefill
from jaxllm.serving.fleet.servers import UNREACHABLE, FleetServer, Servers
from jaxllm.serving.fleet.upload import Upload
from jaxllm.serving.http.errors import HttpError, overloaded, shutting_down
from jaxllm.serving.http.operation import response_to
from jaxllm.serving.http.stream import unless_gone

logger = logging.getLogger(__name__)

GENERATION = frozenset((transfer.CHAT, transfer.COMPLETIONS))
BROADCAST = frozenset(
    (
        *("/reset_prefix_cache", "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/sleep", "/wake_up", "/pause"),
        *("/resume", "/start_profile", "/stop_profile"),
    )
)
"""POST requests that concern all servers."""
NOT_HERE = frozenset(("/scale", "/scale_elastic_ep", "/drain", "/update_weights", "/abort_requests"))
"""Routes that only make sense for one server."""
STORED = ("/v1/responses", "/v1/files", "/v1/batches")
"""Below these, requests name what was stored before: they all go to the first server that answers."""
_OK = 200
_RETRY_AFTER = 1.0
"""Seconds after which a client may try again."""


@dataclass(frozen=True, kw_only=True)
class ProxyLimits:
    """Tokens that are worth a transfer, seconds for a prompt, bytes of a body, and requests at once."""

    min_transfer_tokens: int
    prefill_timeout: float
    max_body_size: int
    max_in_flight: int | None


class Proxy:
    """An ASGI application. Belongs to an event loop."""

    def __init__(self, servers: Servers, metrics: RouterMetrics, limits: ProxyLimits) -> None:
        self._servers, self._metrics, self._limits = servers, metrics, limits
        self._choice = Choice(servers.prefixes)
        self._prefill = Prefill(
            servers,
            self._choice,
            metrics,
            min_tokens=limits.min_transfer_tokens,
            timeout=limits.prefill_timeout,
        )
        self.accepting = True
        """Whether new requests are taken."""
        self.in_flight = 0
        """Requests of clients."""
        self.idle = asyncio.Event()
        """Set while there are none."""
        self.idle.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        self.in_flight += 1
        self.idle.clear()
        begun = False

        async def watched(message: Any) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._answer(scope, receive, watched)
        except ClientDisconnect:
            self._metrics.aborted.inc()
        except Exception as error:
            if begun:
                raise
            await response_to(error, Request(scope))(scope, receive, send)
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self.idle.set()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"].removeprefix(scope.get("root_path", ""))
        most = self._limits.max_in_flight
        if not self.accepting:
            raise shutting_down()
        if most is not None and self.in_flight > most:
            raise overloaded(f"the router has {most} requests in flight (--max-num-queued-reqs)")
        if path in NOT_HERE:
            raise HttpError(404, f"{path} concerns one server: ask it, not the router", code="not_found")
        full = path + (f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else "")
        headers = passed_on(scope)
        method: str = scope["method"]
        if method == "POST" and (path in GENERATION or path in BROADCAST):
            data = await self._read(Request(scope, receive))
            body = json_object(data)
            call = Call(path=full, headers=headers, data=data, body=body or {})
            work = self._broadcast(call, send) if path in BROADCAST else self._generate(path, call, send)
            await unless_gone(receive, work)
        else:
            await self._forward(method, path, full, headers, receive, send)

    @staticmethod
    async def _read(request: Request) -> bytes:
        return b"".join([part async for part in request.stream()])

    # Requests that generate

    async def _generate(self, path: str, call: Call, send: Send) -> None:
        """Have the prompt computed where that is best, and decode."""
        prompt = await self._prefill.prompt(path, call)
        server, cached = self._choice.decode(self._untried(set()), prompt)
        # It has the request before anything is awaited, so that others see it.
        with counted(server):
            parameters = await self._prefill.compute(path, call, prompt, cached)
        status = UNANSWERED
        try:
            status = await self._decode(server, prompt, call, parameters, send)
        finally:
            if parameters is not None and status != _OK:
                self._prefill.release(call, parameters)

    async def _decode(
        self, server: FleetServer, prompt: Prompt | None, call: Call, parameters: Mapping[str, Any] | None, send: Send
    ) -> int:  # fmt: skip
        """Have this server answer, or another one where it does not. Returns the status of the answer."""
        data = call.data
        if parameters is not None:
            data = msgspec.json.encode(transfer.decode_body(call.body, parameters))
        tried: set[int] = set()
        again = True
        while True:
            if not server.is_up:
                server, _ = self._choice.decode(self._untried(tried), prompt)
            tried.add(server.number)
            if prompt is not None:
                self._choice.sent(server, prompt)
            passed, status = await self._tell(server, call, data, send, last=not self._possible(tried))
            if passed:
                return status
            self._metrics.retries.labels(server.name).inc()
            if status == UNANSWERED and server.is_up and again:
                # It is healthy: an old connection was closed as the request came.
                again = False
                tried.discard(server.number)
            server, _ = self._choice.decode(self._untried(tried), prompt)

    def _possible(self, tried: set[int]) -> list[FleetServer]:
        return [server for server in self._servers.of("decode") if server.number not in tried]

    def _untried(self, tried: set[int]) -> list[FleetServer]:
        """The servers that may answer. Raises `EngineError` where there is none."""
        found = self._possible(tried)
        if not found:
            problems = [f"{each.name}: {each.problem}" for each in self._servers.all if each.role == "decode"]
            raise EngineError(f"no server answers ({'; '.join(problems)})", _RETRY_AFTER)
        return found

    async def _tell(self, server: FleetServer, call: Call, data: bytes, send: Send, *, last: bool) -> tuple[bool, int]:
        """Pass a server's answer on; whether that was done, and its status.

        Otherwise another one is to be asked: this one is `UNANSWERED`, or `OVERLOADED` and not the `last` to ask.
        """
        try:
            async with asked(server, "POST", call.path, call.json_headers, data, self._metrics) as answer:
                if answer.status == OVERLOADED and not last:
                    return False, OVERLOADED
                await pass_back(server, answer, send, self._metrics)
                return True, answer.status
        except UnansweredError as error:
            logger.warning("%s; the request is sent again", error)
            return False, UNANSWERED

    # All others

    async def _forward(
        self, method: str, path: str, full: str, headers: Headers, receive: Receive, send: Send
    ) -> None:  # fmt: skip
        """Pass a request on as it comes, to one server."""
        servers = self._untried(set())
        server = servers[0] if path.startswith(STORED) else self._choice.decode(servers, None)[0]
        upload = Upload(receive, ended="content-type" not in headers and method not in ("POST", "PUT", "PATCH"))

        async def work() -> None:
            data = None if upload.ended else upload.parts()
            try:
                async with asked(server, method, full, headers, data, self._metrics) as answer:
                    upload.check()
                    await pass_back(server, answer, send, self._metrics)
            except UnansweredError as error:
                upload.check()
                raise EngineError(f"{error}; try again", _RETRY_AFTER) from None

        working, leaving = asyncio.ensure_future(work()), asyncio.ensure_future(upload.gone())
        try:
            await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise ClientDisconnect
            working.result()
        finally:
            working.cancel()
            leaving.cancel()
            await asyncio.gather(working, leaving, return_exceptions=True)

    async def _broadcast(self, call: Call, send: Send) -> None:
        """Ask all servers; the answer is the first that is no success, or that of the first server."""
        servers = [server for server in self._servers.all if server.is_up]
        if not servers:
            self._untried(set())

        async def ask(server: FleetServer) -> tuple[int, bytes, str]:
            try:
                async with asked(server, "POST", call.path, call.headers, call.data, self._metrics) as answer:
                    return answer.status, await answer.read(), answer.headers.get("Content-Type", "application/json")
            except (UnansweredError, *UNREACHABLE, aiohttp.ClientError) as error:
                raise EngineError(f"{server.name}: {error}") from None

        answers = await asyncio.gather(*map(ask, servers))
        status, body, kind = next((each for each in answers if each[0] >= 300), answers[0])
        headers = [(b"content-type", kind.encode("latin-1")), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})
