"""State that several engines of one client share."""

from collections.abc import Callable

from jaxllm.config.engine_info import EngineInfo
from jaxllm.serving.ipc.client.in_flight import Admission
from jaxllm.serving.text.measurements import Observer


class SharedState:
    """Who is told of the engines, and how many requests they have together. Belongs to an event loop."""

    def __init__(self) -> None:
        self.admission = Admission()
        """All requests in flight."""
        self.observers: list[Observer] = []
        """They see every message of the engines."""
        self.on_restart: list[Callable[[EngineInfo, int], None]] = []
        """Called when another engine has taken the place of one that ended, with the number of that place."""
        self.on_resize: list[Callable[[int], None]] = []
        """Called with the number of engines when it has changed."""
