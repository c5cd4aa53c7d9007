"""Traces of requests for an OpenTelemetry collector. Imported only where they are asked for.

A request is one span `llm_request` with vLLM's attributes, and below it one span for each part of its way. All of them
are made at its end; a thread of the SDK's sends what has gathered.
"""

import importlib
import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from jaxllm.serving.options.observability import TRACE_EXPORTERS, trace_protocol
from jaxllm.serving.telemetry.span_attributes import attributes_of
from jaxllm.serving.text.tracing import Traceable, TracedRequest
from jaxllm.version import __version__

_log = logging.getLogger(__name__)

SPAN: Final = "llm_request"
RESTART: Final = "engine_restart"
_CLOSING_SECONDS = 2.0
"""What the collector gets to take the last spans when the server ends."""


class Tracing:
    """Makes the spans of requests. Belongs to the event loop, but for `close`."""

    def __init__(self, endpoint: str, model_name: str, environ: Mapping[str, str] = os.environ) -> None:
        """`endpoint` gets the spans; OpenTelemetry's variables choose protocol, sampler and sizes of batches.

        Raises `ConfigError` for a protocol that there is not.
        """
        protocol = trace_protocol(environ)
        self._exporter = _Exporter(_exporter(endpoint, protocol), endpoint)
        # At exit we wait as long as we want to, not as long as a collector that is down makes us.
        self._provider = TracerProvider(resource=_resource(environ), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("jaxllm", __version__)
        self._model_name = model_name
        self._propagator = TraceContextTextMapPropagator()
        for name in ("opentelemetry.exporter", "opentelemetry.sdk"):
            # A collector that is down would be a line every second: `_Exporter` says it once.
            logging.getLogger(name).setLevel(logging.CRITICAL)

    def begin(self, requests: Sequence[Traceable], names: Sequence[str], headers: Mapping[str, str]) -> str:
        """Trace requests that the engine has, below the W3C context of `headers` if there is one.

        `names` are what clients know the requests as. Returns the id of the trace in hexadecimal digits, of the first
        request where the client has none.
        """
        context = self._propagator.extract(headers)
        trace_id = ""
        for request, name in zip(requests, names, strict=True):
            adapter = request.children[0].lora_request
            model = self._model_name if adapter is None else adapter.lora_name
            attributes = {"gen_ai.request.id": name, "gen_ai.response.model": model}
            trace = _Trace(self._tracer, context, request.arrival_time, attributes)
            trace_id = trace_id or trace.trace_id
            if trace.span.is_recording():
                request.trace = trace
        return trace_id

    def close(self) -> None:
        """Send what is left, for some seconds at most."""
        flushing = threading.Thread(target=self._provider.shutdown, daemon=True)
        flushing.start()
        flushing.join(_CLOSING_SECONDS)
        if flushing.is_alive():
            self._exporter.shutdown()


class _Trace:
    """The trace of a request in flight: only its root is there, so that its id is known."""

    __slots__ = ("_offset", "_tracer", "span", "trace_id")

    def __init__(self, tracer: Tracer, context: Context, arrival: float, attributes: Mapping[str, str]) -> None:
        self._tracer = tracer
        self._offset = time.time_ns() - time.monotonic_ns()
        self.span: Span = tracer.start_span(
            SPAN, context, SpanKind.SERVER, attributes=attributes, start_time=self._wall(arrival)
        )
        self.trace_id = format(self.span.get_span_context().trace_id, "032x")

    def _wall(self, moment: float) -> int:
        """A moment of the monotonic clock in nanoseconds since 1970."""
        return int(moment * 1e9) + self._offset

    def end(self, request: TracedRequest) -> None:
        """Complete the request's span, and make those below it."""
        span = self.span
        span.set_attributes(attributes_of(request))
        if any(each.reason == "error" for each in request.sequences):
            span.set_status(Status(StatusCode.ERROR, "the engine ended"))
        below = set_span_in_context(span)
        self._part("tokenization", below, request.arrival, request.tokenized)
        scheduled = [each.scheduled for each in request.sequences if each.scheduled is not None]
        self._part("queue", below, request.tokenized, min(scheduled, default=request.ended))
        for index, each in enumerate(request.sequences):
            which: dict[str, Any] = {} if len(request.sequences) == 1 else {"gen_ai.response.index": index}
            if each.scheduled is not None:
                self._part("prefill", below, each.scheduled, each.first_token or request.ended, which)
            if each.first_token is not None and each.last_token is not None:
                which |= {"gen_ai.usage.completion_tokens": each.num_tokens}
                self._part("decode", below, each.first_token, each.last_token, which)
        for pause in request.interruptions:
            why = {
                "jaxllm.engine": pause.engine, "jaxllm.reason": pause.reason, "jaxllm.tokens_before": pause.num_tokens,
            }  # fmt: skip
            self._part(RESTART, below, pause.began, request.ended if pause.ended is None else pause.ended, why)
        span.end(self._wall(request.ended))

    def _part(
        self, name: str, context: Context, begin: float, end: float, attributes: Mapping[str, Any] | None = None
    ) -> None:
        if begin and end >= begin:
            span = self._tracer.start_span(name, context, attributes=attributes, start_time=self._wall(begin))
            span.end(self._wall(end))


class _Exporter(SpanExporter):
    """Sends spans. A collector that takes none costs their spans alone, and a line in the log when that begins."""

    def __init__(self, exporter: SpanExporter, endpoint: str) -> None:
        self._exporter = exporter
        self._endpoint = endpoint
        self._lost = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send some spans, in the SDK's thread."""
        try:
            result = self._exporter.export(spans)
        except Exception:  # noqa: BLE001  (whatever the library raises, the next batch is tried)
            result = SpanExportResult.FAILURE
        if result is SpanExportResult.SUCCESS:
            if self._lost:
                _log.info("%s takes traces again; %d spans were lost", self._endpoint, self._lost)
            self._lost = 0
        else:
            if not self._lost:
                _log.warning("%s takes no traces: they are dropped until it does", self._endpoint)
            self._lost += len(spans)
        return result

    def shutdown(self) -> None:
        """Send no more; a try that waits ends."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Nothing waits here."""
        return self._exporter.force_flush(timeout_millis)


def _exporter(endpoint: str, protocol: str) -> SpanExporter:
    """The exporter of a protocol; the other one's libraries are not imported."""
    make: Any = importlib.import_module(TRACE_EXPORTERS[protocol]).OTLPSpanExporter
    if protocol == "grpc":
        found: SpanExporter = make(endpoint=endpoint, insecure=not endpoint.startswith("https://"))
    else:
        found = make(endpoint=endpoint)
    return found


def _resource(environ: Mapping[str, str]) -> Resource:
    """Who sends the spans; OpenTelemetry's variables may say it otherwise."""
    known: dict[str, Any] = {SERVICE_VERSION: __version__, "process.pid": os.getpid()}
    if not environ.get("OTEL_SERVICE_NAME") and SERVICE_NAME not in environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        known[SERVICE_NAME] = "jaxllm"
    return Resource.create(known)
