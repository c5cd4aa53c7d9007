"""When a batch's next request may run: it waits for room, where another client would be told to come back."""

import asyncio
from collections.abc import Awaitable, Callable

from jaxllm.errors import QuotaError
from jaxllm.serving.openai.batches.client import RouteAnswer
from jaxllm.serving.tenancy.quotas import Account

_RETRY_SECONDS = 1.0
_BUSY = (429, 503)


class Admission:
    """Lets the requests of one batch run within the quota of its owner. Belongs to one event loop."""

    def __init__(self, slots: asyncio.Semaphore, account: Callable[[], Account | None]) -> None:
        """Each request takes one of the `slots` while it runs; `account` finds the owner's, which may change."""
        self._slots, self._account = slots, account
        self._counting, self._retrying = asyncio.Lock(), asyncio.Lock()

    async def run(self, post: Callable[[], Awaitable[RouteAnswer]]) -> RouteAnswer:
        """The answer to a request, which is sent again while there is no room for it."""
        await self._count()
        answer = await self._try(post)
        if answer.status not in _BUSY:
            return answer
        # One at a time tries again: all of them together would only be rejected together.
        async with self._retrying:
            while answer.status in _BUSY:
                await asyncio.sleep(_RETRY_SECONDS if answer.retry_after is None else answer.retry_after)
                answer = await self._try(post)
        return answer

    async def _try(self, post: Callable[[], Awaitable[RouteAnswer]]) -> RouteAnswer:
        async with self._slots:
            return await post()

    async def _count(self) -> None:
        """Count a request, once the owner may send another."""
        async with self._counting:
            while (account := self._account()) is not None:
                try:
                    account.begin()
                    return
                except QuotaError as error:
                    await asyncio.sleep(error.retry_after)
