"""What `stat_loggers` name. They have no effect: a server has its statistics at /metrics, a script in `get_metrics`."""


class StatLoggerBase:
    """What logs statistics."""


class LoggingStatLogger(StatLoggerBase):
    """Logs them."""


class AggregatedLoggingStatLogger(LoggingStatLogger):
    """Logs those of all engines."""


class PrometheusStatLogger(StatLoggerBase):
    """Has them at /metrics."""
