"""The number of engines is changed while they serve: one change at a time, and no request is dropped."""

import asyncio
from collections.abc import Awaitable, Callable

from jaxllm.config import MAX_ENGINES
from jaxllm.errors import CapacityError, ConfigError, RequestError, ScalingBusyError
from jaxllm.serving.ipc.client.members import Members

PARAMETER = "new_data_parallel_size"
"""The field of a request that has the number, as in vLLM."""


class Scaling:
    """Changes how many engines a group has. Belongs to an event loop."""

    def __init__(self, members: Members, elsewhere: Callable[[int, float], Awaitable[None]] | None) -> None:
        """`elsewhere`: has the process do it that starts the engines, where that is another one."""
        self.target: int | None = None
        """How many there shall be; None while nothing is changed."""
        self._members = members
        self._elsewhere = elsewhere
        self._task: asyncio.Task[None] | None = None

    async def scale(self, size: int, drain_timeout: float) -> None:
        """Add engines, or end those with the highest numbers, which first finish what they have.

        Goes on if this is cancelled. Raises `RequestError` for a number that cannot be, `ScalingTimeoutError` when what
        runs takes longer than `drain_timeout` seconds, `ScalingBusyError`, and `EngineError` when one does not start;
        then there are as many as before.
        """
        check_size(size)
        if self.target is not None:
            raise ScalingBusyError(
                f"scaling to {self.target} engines is in progress: wait for it to finish, then try again"
            )
        self.target = size
        work = self._change(size, drain_timeout) if self._elsewhere is None else self._elsewhere(size, drain_timeout)
        self._task = asyncio.create_task(self._finish(work))
        # Whoever asked may be gone when it fails.
        self._task.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(self._task)

    async def _finish(self, work: Awaitable[None]) -> None:
        try:
            await work
        finally:
            self.target = None

    async def _change(self, size: int, drain_timeout: float) -> None:
        members = self._members
        if size > members.size:
            try:
                await members.grow(size)
            except (ConfigError, CapacityError) as error:
                raise RequestError(str(error), PARAMETER) from error
        elif size < members.size:
            check_left(size, members)
            await members.drain(size, drain_timeout)
            await members.remove_drained()

    async def close(self) -> None:
        """End a change that is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


def check_size(size: int) -> None:
    """Raise `RequestError` for a number of engines that cannot be."""
    if not 1 <= size <= MAX_ENGINES:
        raise RequestError(f"{PARAMETER}={size}: must be 1 to {MAX_ENGINES}", PARAMETER)


def check_left(size: int, members: Members) -> None:
    """Raise `RequestError` when the engines that would stay are gone for good."""
    if all(engine.health.error is not None for engine in members.all[:size]):
        raise RequestError(f"{PARAMETER}={size}: the remaining engines have failed permanently", PARAMETER)
