"""The load of the engines in a response's header, for load balancers that read it (ORCA, Envoy's open load reports)."""

import msgspec
from starlette.requests import Request

from jaxllm.engine.stats import StepStats

ASKED = "endpoint-load-metrics-format"
"""The header by which a request asks for it: TEXT or JSON."""
REPORTED = "endpoint-load-metrics"


def load_headers(request: Request, stats: StepStats) -> dict[str, str]:
    """The header, in the format that the request asks for; nothing for other requests and unknown formats."""
    asked = request.headers.get(ASKED, "").upper()
    if asked not in ("TEXT", "JSON"):
        return {}
    named = {"kv_cache_usage_perc": stats.kv_usage, "num_requests_waiting": float(stats.num_waiting)}
    if asked == "JSON":
        return {REPORTED: f"JSON {msgspec.json.encode({'named_metrics': named}).decode()}"}
    return {REPORTED: f"TEXT {', '.join(f'named_metrics.{name}={value}' for name, value in named.items())}"}
