"""Responses in the background that were being made when an earlier server ended."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from jaxllm.errors import QueueFullError, QuotaError
from jaxllm.serving.http.errors import describe
from jaxllm.serving.http.operation import timed
from jaxllm.serving.openai.protocol.response_answers import ResponseError
from jaxllm.serving.openai.responses.store import ResponseStore, Stored
from jaxllm.serving.openai.responses.writer import failed_event

logger = logging.getLogger(__name__)

Create = Callable[[Request, Stored], Awaitable[Response]]
"""Begins a stored response again, as the request's answer."""

_MOST_SECONDS = 60.0


class Restarted:
    """Begins responses again, one after the other; those that wait can be cancelled."""

    def __init__(self, app: Starlette, store: ResponseStore, create: Create) -> None:
        """Starts at once."""
        self._app, self._store, self._create = app, store, create
        waiting = store.running
        for stored in waiting:
            stored.cancel = lambda stored=stored: self._end(stored, "cancelled")
        self._task = asyncio.get_running_loop().create_task(self._begin_all(waiting))

    async def stop(self) -> None:
        """Leave what waits to another server."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _begin_all(self, waiting: list[Stored]) -> None:
        for stored in waiting:
            while stored.runs:
                try:
                    await self._begin(stored)
                    break
                except (QueueFullError, QuotaError) as error:
                    await asyncio.sleep(min(error.retry_after, _MOST_SECONDS))
                except Exception as error:  # noqa: BLE001  (one response must not keep others from going on)
                    name = "" if stored.asked is None else stored.asked.request_id
                    details = describe(error, name).details
                    logger.warning("cannot continue %s: %s", stored.response.id, details.message)
                    stored.response.error = ResponseError(message=details.message)
                    self._end(stored, "failed")

    async def _begin(self, stored: Stored) -> None:
        # The time that the operator allows begins again, too.
        await timed(lambda request: self._create(request, stored))(self._request(stored))
        logger.info("%s goes on", stored.response.id)

    def _request(self, stored: Stored) -> Request:
        asked = stored.asked
        if asked is None:
            raise ValueError("it is not known what this response was to answer")

        async def receive() -> Message:
            # Nobody waits for the answer, and nobody leaves.
            await asyncio.Event().wait()
            raise AssertionError("nothing sets the event")

        scope: dict[str, Any] = {
            "type": "http",
            "method": "POST",
            "path": "/v1/responses",
            "query_string": b"",
            "headers": [],
            "client": None,
            "app": self._app,
            "owner": asked.owner,
            "request_id": asked.request_id,
        }
        return Request(scope, receive)

    def _end(self, stored: Stored, status: Any) -> None:
        if not stored.runs:
            return
        stored.response.status = status
        last = [failed_event(stored.response, stored.num_events)] if status == "failed" else []
        self._store.tell(stored, last, last=True)
        self._store.put(stored)
