"""What `stat_loggers` name. They have no effect: a server has its statistics at /metrics, a script in `get_metrics`."""

from typing import Any


class StatLoggerBase:
    """The logger of statistics. Nothing calls it; it takes the arguments that subclasses written for vLLM hand on."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def record(self, *_: Any, **__: Any) -> None:
        """Nothing."""

    def log(self) -> None:
        """Nothing."""

    def log_engine_initialized(self) -> None:
        """Nothing."""


class LoggingStatLogger(StatLoggerBase):
    """Logs them."""


class AggregatedLoggingStatLogger(LoggingStatLogger):
    """Logs those of all engines."""


class PrometheusStatLogger(StatLoggerBase):
    """Has them at /metrics."""
