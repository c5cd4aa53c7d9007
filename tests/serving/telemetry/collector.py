"""Collectors of traces, over HTTP and gRPC, that decode what comes with OpenTelemetry's own messages."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)


@dataclass(frozen=True)
class Received:
    """A span as it came; ids are hexadecimal digits, times seconds since 1970."""

    name: str
    trace_id: str
    span_id: str
    parent: str
    kind: int
    begin: float
    end: float
    attributes: dict[str, Any]
    is_error: bool
    resource: dict[str, Any]


@dataclass
class Collector:
    """What came so far."""

    endpoint: str = ""
    spans: list[Received] = field(default_factory=list)
    arrived: threading.Condition = field(default_factory=threading.Condition)

    def take(self, request: ExportTraceServiceRequest) -> None:
        """Some spans came."""
        found = [
            _read(span, _attributes(each.resource.attributes))
            for each in request.resource_spans
            for scope in each.scope_spans
            for span in scope.spans
        ]
        with self.arrived:
            self.spans += found
            self.arrived.notify_all()

    def traces(self, count: int, seconds: float = 30.0) -> list[list[Received]]:
        """The spans of `count` requests, each with its root first, in the order of their beginnings."""
        deadline = time.monotonic() + seconds
        with self.arrived:
            while len(roots := [span for span in self.spans if span.name == "llm_request"]) < count:
                left = deadline - time.monotonic()
                assert left > 0, [span.name for span in self.spans]
                self.arrived.wait(left)
            parts = [[root, *(each for each in self.spans if each.parent == root.span_id)] for root in roots]
        return [sorted(part, key=lambda span: (span.name != "llm_request", span.begin)) for part in parts]


def _read(span: Any, resource: dict[str, Any]) -> Received:
    return Received(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.kind,
        span.start_time_unix_nano / 1e9,
        span.end_time_unix_nano / 1e9,
        _attributes(span.attributes),
        span.status.code == 2,
        resource,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(each) for each in value.array_value.values] if kind == "array_value" else getattr(value, kind)


@contextmanager
def collecting_http() -> Iterator[Collector]:
    """A collector that speaks OTLP over HTTP."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.take(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.endpoint = f"http://127.0.0.1:{server.server_port}/v1/traces"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def collecting_grpc() -> Iterator[Collector]:
    """A collector that speaks OTLP over gRPC."""
    collector = Collector()

    class Service(TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802  (the name is the protocol's)
            collector.take(request)
            return ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(1))
    add_TraceServiceServicer_to_server(Service(), server)  # type: ignore[no-untyped-call]
    collector.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(None).wait()
