"""A request to one server: headers that pass, its answer as it comes, and who is asked next when one fails."""

import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

import aiohttp
from starlette.types import Scope, Send

from jaxllm.serving.fleet.metrics import RouterMetrics
from jaxllm.serving.fleet.servers import UNREACHABLE, FleetServer
from jaxllm.serving.http.error_form import OPENAI_ERRORS
from jaxllm.serving.http.errors import HttpError
from jaxllm.serving.http.stream import EVENTS

logger = logging.getLogger(__name__)

Headers = Mapping[str, str]

_OF_CONNECTIONS = frozenset(
    (
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer"),
        *("transfer-encoding", "upgrade", "host", "content-length", "expect"),
    )
)
"""Headers between two neighbours (RFC 9110, 7.6.1), and those that follow from what is sent."""
_OF_SERVERS = _OF_CONNECTIONS | {"date"}
"""Headers of answers that the router has itself."""
UNANSWERED = 0
OVERLOADED = 503
"""The status of a server that takes nothing now: another one may."""


class UnansweredError(Exception):
    """A server ended, or was not there, before it began to answer."""


def passed_on(scope: Scope) -> dict[str, str]:
    """Headers of a request for a server: the client's, its address, and the id that log lines have."""
    found = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    named = {each.strip().lower() for each in found.get("connection", "").split(",")}
    headers = {name: value for name, value in found.items() if name not in _OF_CONNECTIONS and name not in named}
    client = scope.get("client")
    if client:
        headers["x-forwarded-for"] = client[0]
    headers["x-forwarded-proto"] = scope.get("scheme", "http")
    if "request_id" in scope:
        headers["x-request-id"] = scope["request_id"]
    return headers


@contextmanager
def counted(server: FleetServer) -> Iterator[None]:
    """The server has a request for so long."""
    server.in_flight += 1
    try:
        yield
    finally:
        server.in_flight -= 1


@asynccontextmanager
async def asked(
    server: FleetServer, method: str, path: str, headers: Headers, data: bytes | AsyncIterator[bytes] | None,
    metrics: RouterMetrics,
) -> AsyncIterator[aiohttp.ClientResponse]:  # fmt: skip
    """The answer of a server, whose body is still to be read. Leaving early ends the request there.

    Raises `UnansweredError`; then the server was asked whether it is healthy, and gets nothing more unless it is.
    """
    skip = ("Accept-Encoding", "User-Agent", "Content-Type", "Accept")
    with counted(server):
        try:
            answer = await server.session.request(
                method, server.address(path), headers=headers, data=data, allow_redirects=False, skip_auto_headers=skip
            )
        except UNREACHABLE as error:
            metrics.requests.labels(server.name, "0").inc()
            problem = str(error) or "it does not answer"
            await server.check()
            raise UnansweredError(f"{server.name}: {problem}") from error
        metrics.requests.labels(server.name, str(answer.status)).inc()
        try:
            yield answer
        finally:
            # A connection whose answer was not read to its end is closed, which aborts the request.
            answer.close() if not answer.content.at_eof() else answer.release()


async def pass_back(server: FleetServer, answer: aiohttp.ClientResponse, send: Send, metrics: RouterMetrics) -> None:
    """Send an answer to the client as it comes. A stream of events that breaks ends with one that says so."""
    headers = [
        (name.lower(), value) for name, value in answer.raw_headers if name.lower().decode("latin-1") not in _OF_SERVERS
    ]
    length = answer.headers.get("Content-Length")
    if length is not None:
        headers.append((b"content-length", length.encode()))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    try:
        async for data in answer.content.iter_any():
            await send({"type": "http.response.body", "body": data, "more_body": True})
    except (aiohttp.ClientPayloadError, aiohttp.ClientConnectionError) as error:
        server.fail(str(error) or "it ended in the middle of an answer")
        metrics.broken.labels(server.name).inc()
        if not answer.headers.get("Content-Type", "").startswith(EVENTS):
            # Without its end, the client sees that the answer is cut short.
            raise
        message = f"{server.name} ended in the middle of the stream: send the request again"
        event = OPENAI_ERRORS.event(HttpError(500, message, code="engine_unavailable"), "")
        await send({"type": "http.response.body", "body": event, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
