"""The one result of a request to a pooling model, for whoever waits for it."""

import asyncio
from collections.abc import Callable

from jaxllm.serving.pooling.inputs import PooledText
from jaxllm.serving.pooling.outputs import PoolingRequestOutput


class PooledResult:
    """Comes once. Belongs to one event loop."""

    def __init__(self, request: PooledText, on_close: Callable[[str], None]) -> None:
        """`on_close` is called with the request's id if nobody waits any more before it has come."""
        self.request = request
        self._on_close = on_close
        self._result: asyncio.Future[PoolingRequestOutput] = asyncio.get_running_loop().create_future()

    def put(self, output: PoolingRequestOutput) -> None:
        """It has come."""
        if not self._result.done():
            self._result.set_result(output)

    def fail(self, error: Exception) -> None:
        """It will not come, for this reason."""
        if not self._result.done():
            self._result.set_exception(error)
            # Nobody may be waiting any more.
            self._result.exception()

    async def get(self) -> PoolingRequestOutput:
        """Wait for it. Raises `EngineError` when the engine fails."""
        return await asyncio.shield(self._result)

    def close(self) -> None:
        """Nobody waits any more: a request that is not finished is aborted."""
        if not self._result.done():
            self._result.cancel()
            self._on_close(self.request.request_id)
