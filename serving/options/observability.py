"""Options for operators who watch a server, as in `jaxllm.config`."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final

from jaxllm.config import option
from jaxllm.errors import ConfigError
from jaxllm.serving.options.logs import LogOptions

TRACE_EXPORTERS: Final = {
    "grpc": "opentelemetry.exporter.otlp.proto.grpc.trace_exporter",
    "http/protobuf": "opentelemetry.exporter.otlp.proto.http.trace_exporter",
}
"""Modules that send traces, by the protocol."""
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
"""Variables of OpenTelemetry that choose the protocol, the more particular one first."""
_ENDPOINT: Final = r"(https?|grpc)://[^\s/]+(/\S*)?|[^\s/:]+:\d+"


@dataclass(frozen=True, kw_only=True)
class ObservabilityOptions(LogOptions):
    """Logs, names of metrics, and where traces of requests go."""

    otlp_traces_endpoint: str | None = option(
        None,
        "URL of an OpenTelemetry collector that gets a trace of each request, such as http://localhost:4317; with "
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf in the environment http://localhost:4318/v1/traces. Needs "
        "jaxllm[otel]. See docs/tracing.md.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        endpoint = self.otlp_traces_endpoint
        if endpoint is None:
            return
        if not re.fullmatch(_ENDPOINT, endpoint):
            raise ConfigError(
                f"otlp_traces_endpoint={endpoint!r}: must be a URL such as http://localhost:4317, or HOST:PORT"
            )
        module = TRACE_EXPORTERS[trace_protocol(os.environ)]
        if not _is_installed(module):
            raise ConfigError("otlp_traces_endpoint: OpenTelemetry is not installed: pip install 'jaxllm[otel]'")


def trace_protocol(environ: Mapping[str, str]) -> str:
    """The protocol in which traces are sent: that of OpenTelemetry's variables, by default gRPC, as in vLLM.

    Raises `ConfigError` for one that there is not.
    """
    name, protocol = next(((each, environ[each]) for each in _PROTOCOLS if environ.get(each)), ("", "grpc"))
    if protocol not in TRACE_EXPORTERS:
        raise ConfigError(f"{name}={protocol!r}: must be one of {', '.join(TRACE_EXPORTERS)}")
    return protocol


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
