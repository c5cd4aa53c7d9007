"""What a server needs to know as one of several before one engine."""

from collections.abc import Callable
from dataclasses import dataclass

from jaxllm.serving.ipc.client.connection import Launch
from jaxllm.serving.telemetry.shared_metrics import SharedMetrics


@dataclass(frozen=True, kw_only=True)
class WorkerContext:
    """Of one of several API server processes, for which the supervisor loads the engine and speaks.

    `launch` finds the engine, `shared_metrics` has what the others have measured, `on_listening` is called when it
    answers.
    """

    launch: Launch
    shared_metrics: SharedMetrics
    on_listening: Callable[[], None]
