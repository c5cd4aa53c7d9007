"""The interface of the engine below: token ids in, token ids or arrays out."""

from collections.abc import Iterable
from typing import Any, Protocol

from jaxllm.config.engine_info import EngineInfo
from jaxllm.requests.outputs import EngineOutput


class TokenEngine(Protocol):
    """An engine here or in another process, for models that generate or pool.

    A protocol, since the processes belong to a folder above this one.
    """

    @property
    def info(self) -> EngineInfo:
        """The model and its limits."""
        ...

    def add_request(self, request: Any) -> None:
        """Queue a `Request`, or of a pooling model a `PoolingRequest`. Raises `RequestError`."""

    def abort_request(self, request_ids: str | Iterable[str]) -> None:
        """End requests without further outputs."""

    def finish_request(self, request_id: str, stop_reason: str) -> None:
        """End a request whose text holds a stop string."""

    def step(self) -> list[EngineOutput]:
        """Run one step."""
        ...

    def has_unfinished_requests(self) -> bool:
        """Whether any request waits or runs."""
        ...

    def reset_prefix_cache(self) -> bool:
        """Forget cached prefixes; False when that is not possible now."""
        ...

    def start_profile(self) -> str:
        """Begin a trace; the folder that gets it. Raises `RequestError`."""
        ...

    def stop_profile(self) -> str:
        """End the trace; its folder. Raises `RequestError`."""
        ...

    def close(self) -> None:
        """Free device memory."""
