"""Answers requests with what servers say: which one is asked, where the prompt is computed, and what if one fails."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
import numpy as np
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from jaxllm.errors import EngineError
from jaxllm.serving.affinity.prefixes import Prompt
from jaxllm.serving.fleet import transfer
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
from jaxllm.serving.fleet.servers import UNREACHABLE, FleetServer, Servers
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
_RENDER_SECONDS = 30.0
_RETRY_AFTER = 1.0
"""Seconds after which a client may try again."""


@dataclass(frozen=True, kw_only=True)
class ProxyLimits:
    """Tokens that are worth a transfer, seconds for a prompt, bytes of a body, and requests at once."""

    min_transfer_tokens: int
    prefill_timeout: float
    max_body_size: int
    max_in_flight: int | None


@dataclass(frozen=True, kw_only=True)
class Call:
    """A request of a client whose body was read: `path` with its query."""

    path: str
    headers: Headers
    data: bytes
    body: dict[str, Any]


class Proxy:
    """An ASGI application. Belongs to an event loop."""

    def __init__(self, servers: Servers, metrics: RouterMetrics, limits: ProxyLimits) -> None:
        self._servers, self._metrics, self._limits = servers, metrics, limits
        self._choice = Choice(servers.prefixes)
        self.accepting = True
        """Whether new requests are taken."""
        self.in_flight = 0
        """Requests of clients."""
        self.idle = asyncio.Event()
        """Set while there are none."""
        self.idle.set()
        self._releases: set[asyncio.Task[None]] = set()

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
            body = _json_object(data)
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
        prompt = await self._prompt(path, call)
        server, cached = self._choice.decode(self._untried(set()), prompt)
        # It has the request before anything is awaited, so that others see it.
        with counted(server):
            parameters = await self._prefill(path, call, prompt, cached)
        status = UNANSWERED
        try:
            status = await self._decode(server, prompt, call, parameters, send)
        finally:
            if parameters is not None and status != _OK:
                self._release(call, parameters)

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
        headers = {**call.headers, "content-type": "application/json"}
        try:
            async with asked(server, "POST", call.path, headers, data, self._metrics) as answer:
                if answer.status == OVERLOADED and not last:
                    return False, OVERLOADED
                await pass_back(server, answer, send, self._metrics)
                return True, answer.status
        except UnansweredError as error:
            logger.warning("%s; the request is sent again", error)
            return False, UNANSWERED

    async def _prompt(self, path: str, call: Call) -> Prompt | None:
        """The ids of the prompt, where it matters who has them; None also where they cannot be told.

        A token has a byte at least: shorter bodies need no tokenizer.
        """
        decoders = self._servers.of("decode")
        apart = self._servers.disaggregated and transfer.may_be_apart(path, call.body)
        if not decoders or len(call.data) < self._limits.min_transfer_tokens or not (apart or len(decoders) > 1):
            return None
        asking = min(decoders, key=lambda each: each.in_flight)
        headers = {**call.headers, "content-type": "application/json"}
        rendered: Any = None
        try:
            async with (
                asyncio.timeout(_RENDER_SECONDS),
                asked(asking, "POST", f"{path}/render", headers, call.data, self._metrics) as answer,
            ):
                rendered = msgspec.json.decode(await answer.read()) if answer.status == 200 else None
        except (UnansweredError, TimeoutError, aiohttp.ClientError, msgspec.DecodeError):
            return None
        rendered = rendered[0] if isinstance(rendered, list) and len(rendered) == 1 else rendered
        if not isinstance(rendered, dict) or not isinstance(rendered.get("token_ids"), list):
            return None
        model = call.body.get("model")
        return Prompt(
            token_ids=np.array(rendered["token_ids"], np.int32),
            salt=rendered.get("cache_salt"),
            adapter=model if model in asking.adapters else None,
        )

    async def _prefill(self, path: str, call: Call, prompt: Prompt | None, cached: int) -> Mapping[str, Any] | None:
        """What a prefill server says of the pages that it has computed; None: it is computed where it is decoded."""
        if not self._servers.disaggregated:
            return None
        if prompt is None:
            is_short = transfer.may_be_apart(path, call.body) and len(call.data) < self._limits.min_transfer_tokens
            return self._computed("short" if is_short else "unsupported")
        length, least = len(prompt.token_ids), self._limits.min_transfer_tokens
        if length < least:
            return self._computed("short")
        if length - cached < least:
            return self._computed("cached")
        servers = self._servers.of("prefill")
        tried: set[int] = set()
        while left := [server for server in servers if server.number not in tried and server.is_up]:
            server, work = self._choice.prefill(left, prompt)
            tried.add(server.number)
            self._choice.sent(server, prompt)
            parameters = await self._compute(server, work, call)
            if parameters is not None:
                return self._computed("prefill", parameters)
            self._metrics.retries.labels(server.name).inc()
        return self._computed("failed" if servers else "unavailable")

    def _release(self, call: Call, parameters: Mapping[str, Any]) -> None:
        """Nobody fetches the pages: have a server that decodes tell so, unless it knows by itself."""
        task = asyncio.create_task(self._send_release(call, parameters))
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def _send_release(self, call: Call, parameters: Mapping[str, Any]) -> None:
        servers = self._servers.of("decode")
        if not servers:
            return
        server = min(servers, key=lambda each: each.in_flight)
        headers = {**call.headers, "content-type": "application/json"}
        data = msgspec.json.encode(transfer.release_body(call.body, parameters))
        # Otherwise its lease ends when its time is up.
        with suppress(UnansweredError, TimeoutError, aiohttp.ClientError):
            async with (
                asyncio.timeout(_RENDER_SECONDS),
                asked(server, "POST", transfer.COMPLETIONS, headers, data, self._metrics) as answer,
            ):
                await answer.read()

    def _computed(self, place: str, parameters: Mapping[str, Any] | None = None) -> Mapping[str, Any] | None:
        """Count where a prompt is computed. Returns the parameters."""
        self._metrics.prompts.labels(place).inc()
        return parameters

    async def _compute(self, server: FleetServer, work: int, call: Call) -> Mapping[str, Any] | None:
        """Have a server compute the prompt; None where it does not."""
        headers = {**call.headers, "content-type": "application/json"}
        data = msgspec.json.encode(transfer.prefill_body(call.body))
        began = time.monotonic()
        server.queued_tokens += work
        try:
            async with (
                asyncio.timeout(self._limits.prefill_timeout),
                asked(server, "POST", call.path, headers, data, self._metrics) as answer,
            ):
                body = await answer.read()
                if answer.status != 200:
                    logger.warning("%s did not compute a prompt: status %d, %s", server.name, answer.status, body[:300])
                    return None
                found = msgspec.json.decode(body)
        except TimeoutError:
            logger.warning("%s took longer than %g s for a prompt", server.name, self._limits.prefill_timeout)
            return None
        except (UnansweredError, aiohttp.ClientError, msgspec.DecodeError) as error:
            logger.warning("%s did not compute a prompt: %s", server.name, error)
            return None
        finally:
            server.queued_tokens -= work
        self._metrics.prefill_seconds.observe(time.monotonic() - began)
        parameters = found.get(transfer.PARAMETERS) if isinstance(found, dict) else None
        if not isinstance(parameters, dict):
            logger.warning("%s keeps no pages for others: its answer has no %s", server.name, transfer.PARAMETERS)
            return None
        return parameters

    # All others

    async def _forward(
        self, method: str, path: str, full: str, headers: Headers, receive: Receive, send: Send
    ) -> None:  # fmt: skip
        """Pass a request on as it comes, to one server."""
        servers = self._untried(set())
        server = servers[0] if path.startswith(STORED) else self._choice.decode(servers, None)[0]
        upload = _Upload(receive, ended="content-type" not in headers and method not in ("POST", "PUT", "PATCH"))

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


def _json_object(data: bytes) -> dict[str, Any] | None:
    """The object that a body is; None for anything else, which a server will reject better than we can."""
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


class _Upload:
    """The body of a request as it comes, and whether its client is still there."""

    def __init__(self, receive: Receive, *, ended: bool) -> None:
        """`ended`: there is no body."""
        self.ended = ended
        self._receive = receive
        self._read, self._left = asyncio.Event(), asyncio.Event()
        self._failure: Exception | None = None
        if ended:
            self._read.set()

    async def parts(self) -> AsyncIterator[bytes]:
        """The parts of the body. A server must not be blamed for what is wrong with it: that is for `check`."""
        try:
            while not self._read.is_set():
                message = await self._receive()
                if message["type"] == "http.disconnect":
                    self._left.set()
                    return
                if message.get("body"):
                    yield message["body"]
                if not message.get("more_body"):
                    self._read.set()
        except HttpError as error:
            self._failure = error

    def check(self) -> None:
        """Raise the error of a body that could not be read."""
        if self._failure is not None:
            raise self._failure

    async def gone(self) -> None:
        """Return when the client has left, which is looked for when the body was read."""
        waiting = [asyncio.ensure_future(each.wait()) for each in (self._read, self._left)]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()
        while not self._left.is_set() and (await self._receive())["type"] != "http.disconnect":
            pass
