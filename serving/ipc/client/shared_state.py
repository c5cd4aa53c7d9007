"""State that several engines of one client share."""

from collections.abc import Callable
from typing import Any, Protocol

from jaxllm.config.engine_info import EngineInfo
from jaxllm.serving.ipc.client.in_flight import Admission
from jaxllm.serving.ipc.client.resumption import MAX_REQUEST_CRASHES, Crashes
from jaxllm.serving.ipc.messages import ToEngine
from jaxllm.serving.text.measurements import Observer


class Refuge(Protocol):
    """An engine that can go on with requests of another one."""

    def adopt(self, reader: Any, followed: Any, make_message: Callable[[list[Any]], ToEngine]) -> None:
        """Go on with the request of this reader; `followed` is what was known of it (`OutputSink.release`)."""


class SharedState:
    """Who is told of the engines, and how many requests they have together. Belongs to an event loop."""

    def __init__(self, max_request_crashes: int = MAX_REQUEST_CRASHES) -> None:
        self.crashes = Crashes(max_request_crashes)
        """How often requests were in engines that ended."""
        self.find_refuge: Callable[[int, Any], Refuge | None] = lambda number, reader: None
        """The engine that can go on with the request of this reader, now that the engine of this number has ended."""
        self.admission = Admission()
        """All requests in flight."""
        self.observers: list[Observer] = []
        """They see every message of the engines."""
        self.on_serve: list[Callable[[EngineInfo, int], None]] = []
        """Called when an engine begins to take requests, with its number."""
        self.on_restart: list[Callable[[EngineInfo, int], None]] = []
        """Called when another engine has taken the place of one that ended, with the number of that place."""
        self.on_resume: list[Callable[[int, int], None]] = []
        """Called with the number of requests that go on after the end of their engine, and the number of that."""
        self.on_lag: list[Callable[[float, int], None]] = []
        """Called when an engine has answered a question after so many seconds, with its number."""
        self.on_resize: list[Callable[[int], None]] = []
        """Called with the number of engines when it has changed."""
