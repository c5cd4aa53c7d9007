"""Options of logs and metrics, as in `jaxllm.config`."""

from dataclasses import dataclass
from typing import Literal

from jaxllm.config import Section, option


@dataclass(frozen=True, kw_only=True)
class LogOptions(Section):
    """Log lines, and names of metrics."""

    log_level: Literal["critical", "error", "warning", "info", "debug"] = option("info", "Minimum severity to log.")
    log_format: Literal["text", "json"] = option(
        "text", "Format of log lines: plain text, or one JSON object per line."
    )
    access_log: bool = option(
        False,
        "Log a line when an HTTP request ends (except for health and metrics): status, duration, tokens and, if "
        "rejected, the reason; as fields with --log-format json.",
    )
    enable_log_requests: bool = option(False, "Log the prompt and parameters of every request.")
    max_log_len: int | None = option(None, "Maximum number of prompt characters in such a line.", minimum=0)
    disable_log_stats: bool = option(False, "Do not log throughput every ten seconds.")
    metrics_prefix: str = option("jaxllm", "Prefix of metric names; 'vllm' keeps dashboards made for vLLM working.")
