"""Sleep, pauses and other weights for the engines of an `AsyncLLM`."""

import asyncio
from collections.abc import AsyncIterable, Mapping, Sequence
from contextlib import suppress
from os import PathLike
from typing import Any

from jaxllm.engine.control import PauseMode
from jaxllm.errors import EngineError, RequestError
from jaxllm.serving.ipc.client.control import called, weights_message
from jaxllm.serving.ipc.client.group import EngineGroup
from jaxllm.serving.ipc.messages import EngineMethod
from jaxllm.serving.llm.weights import NewWeights, checked_tensor

POLL_SECONDS = 0.02
"""Between two questions whether the last requests have ended."""


class AsyncControl:
    """Asks every engine. Methods raise `RequestError` for what an engine refuses."""

    def __init__(self, engines: EngineGroup) -> None:
        self._engines = engines

    async def sleep(self, level: int, mode: PauseMode) -> None:
        """See `EngineControl.sleep`."""
        await self._until_done("sleep", level=level, mode=mode)

    async def wake_up(self, tags: Sequence[str] | None) -> None:
        """See `EngineControl.wake_up`."""
        await self._engines.call("wake_up", tags=None if tags is None else list(tags))

    async def pause(self, mode: PauseMode, *, clear_cache: bool) -> None:
        """See `EngineControl.pause`."""
        await self._until_done("pause", mode=mode, clear_cache=clear_cache)

    async def _until_done(self, method: EngineMethod, **arguments: Any) -> None:
        """Ask again and again: an engine with requests that run to their ends says that it is not done."""
        again = False
        while not await self._engines.call(method, **arguments, again=again):
            again = True
            await asyncio.sleep(POLL_SECONDS)

    async def update(self, weights: "NewWeights | AsyncIterable[tuple[str, Any]]") -> int:
        """Replace weights by those of a folder, or tensor by tensor; how often that was done so far."""
        engines = self._engines
        if isinstance(weights, (str, PathLike)):
            return int(await engines.call("update_weights_from", folder=str(weights)) or 0)
        try:
            await engines.call("start_weight_update")
        except RequestError:
            raise  # Another update may be under way, which is not ours to end.
        except BaseException as error:
            await self._abandon(error)
            raise
        try:
            if isinstance(weights, AsyncIterable):
                async for tensor in weights:
                    await engines.ask(weights_message([checked_tensor(tensor)]))
            else:
                for tensor in weights.items() if isinstance(weights, Mapping) else weights:
                    await engines.ask(weights_message([checked_tensor(tensor)]))
            return int(await engines.call("finish_weight_update") or 0)
        except BaseException as error:
            await self._abandon(error)
            raise

    async def _abandon(self, error: BaseException) -> None:
        """Engines that have not failed themselves wait for more tensors."""
        with suppress(EngineError):
            await self._engines.ask(called("abandon_weight_update", reason=str(error) or type(error).__name__))

    async def reload(self) -> int:
        """Read the weights of the model's checkpoint again."""
        return int(await self._engines.call("update_weights_from") or 0)


def pause_mode(mode: PauseMode, *, wait_for_inflight_requests: bool) -> PauseMode:
    """The mode that is asked for; vLLM's old name of "wait" is a flag. Raises `RequestError` for both."""
    if wait_for_inflight_requests and mode == "keep":
        raise RequestError("wait_for_inflight_requests and mode='keep' contradict each other", "mode")
    return "wait" if wait_for_inflight_requests else mode
