"""Counting of requests."""

import time
from collections.abc import Set as AbstractSet
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jaxllm.serving.http.operation import REJECTED
from jaxllm.serving.telemetry.http import HttpMetrics

NO_ROUTE = "none"
EXEMPLAR: Final = "jaxllm.exemplar"
"""In the scope: the trace that a collector gets of the request, if it gets one."""
_UNCOUNTED = frozenset(("/metrics", "/health", "/live", "/ready", "/readyz", "/load", "/ping", "/version"))
"""As in vLLM: what probes ask for all the time."""


class MeasureRequests:
    """Counts every request once it is answered, by its route, and why one was rejected."""

    def __init__(self, app: ASGIApp, metrics: HttpMetrics, paths: AbstractSet[str]) -> None:
        """`paths` are those of routes, for requests that never reach the router."""
        self._app = app
        self._metrics = metrics
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http" or scope["path"].removeprefix(scope.get("root_path", "")) in _UNCOUNTED:
            await self._app(scope, receive, send)
            return
        began, status, sent = time.perf_counter(), 500, 0

        async def watch(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status, sent = message["status"], _length(Headers(raw=message.get("headers", [])))
            await send(message)

        try:
            await self._app(scope, receive, watch)
        finally:
            path = scope["path"].removeprefix(scope.get("root_path", ""))
            route = scope.get("route")
            handler = route.path_format if route is not None else path if path in self._paths else NO_ROUTE
            method = scope["method"] if scope["method"] in _METHODS else "OTHER"
            seconds = time.perf_counter() - began
            received, trace_id = _length(Headers(scope=scope)), scope.get(EXEMPLAR, "")
            self._metrics.observe(handler, method, status, seconds, received, sent, trace_id)
            if REJECTED in scope:
                self._metrics.reject(scope[REJECTED])


_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))


def _length(headers: Headers) -> int:
    declared = headers.get("content-length", "")
    return int(declared) if declared.isascii() and declared.isdigit() and len(declared) < 16 else 0
