"""The life of `jaxllm serve` on any host of an engine but the first: it follows, and answers nobody."""

import logging
import os
import signal
import threading
from functools import partial
from types import FrameType

from jaxllm.config import EngineConfig
from jaxllm.config.progress import Progress, silent
from jaxllm.load import follow_engine
from jaxllm.serving.options.server import ServerOptions
from jaxllm.serving.telemetry.logs import configure_logging

_log = logging.getLogger(__name__)

_MORE_SECONDS = 10.0
"""For the first process to end once it has no requests any more."""


def run_follower(config: EngineConfig, options: ServerOptions, progress: Progress = silent) -> int:
    """Follow until the first process ends; the result is the exit code.

    A first SIGTERM or Ctrl-C does not end it at once, as the first process, which is told to end at the same time, may
    still have requests to finish. A second one does. Raises `ConfigError`, `CapacityError` or `EngineError`.
    """
    configure_logging(options.log_level, json_lines=options.log_format == "json")
    signals: list[int] = []

    def take(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        if len(signals) > 1:
            os._exit(128 + number)
        _log.info("received a signal to exit: waiting for process 0")
        timer = threading.Timer(options.shutdown_timeout + _MORE_SECONDS, partial(os._exit, 128 + number))
        timer.daemon = True
        timer.start()

    before = {number: signal.signal(number, take) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        follow_engine(config, progress)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    _log.info("process 0 has ended")
    return 0
