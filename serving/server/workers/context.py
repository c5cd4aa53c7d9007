"""The context of a server that is one of several before the same engines."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from jaxllm.serving.http.shared_adapters import SharedAdapters
from jaxllm.serving.ipc.client.connection import Launch
from jaxllm.serving.llm.async_llm import AsyncLLM
from jaxllm.serving.telemetry.shared_metrics import SharedMetrics


@dataclass(frozen=True, kw_only=True)
class WorkerContext:
    """Context of one of several API server processes, for which the supervisor loads the engines and speaks.

    `launch_of` finds an engine by its number, `shared_metrics` has what the others have measured, `shared_adapters` the
    adapters that all serve, `on_listening` is called when it answers. `drain` has the supervisor end all processes.
    `overloaded` says what it finds wrong with engines.
    `scale` has it change the number of engines, and from `follow` on it tells the engine's client of such changes.
    """

    launch_of: Callable[[int], Launch]
    shared_metrics: SharedMetrics
    shared_adapters: SharedAdapters
    on_listening: Callable[[], None]
    drain: Callable[[], None]
    overloaded: Callable[[], str]
    scale: Callable[[int, float], Awaitable[None]]
    follow: Callable[[AsyncLLM], None]
