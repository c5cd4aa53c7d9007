"""Runs a load test: every request at its time, so many at once as may be."""

import asyncio
import gc
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack, nullcontext
from typing import Any, Self

import aiohttp

from jaxllm.errors import EngineError
from jaxllm.serving.bench.client import LoadResult, LoadTarget, ask, open_session
from jaxllm.serving.bench.datasets.request import LoadRequest

_RETRY_SECONDS = 1.0


async def run_load(
    target: LoadTarget,
    requests: Iterable[LoadRequest],
    times: Iterable[float],
    on_answer: Callable[[int, LoadResult], None],
    max_concurrency: int | None = None,
) -> None:
    """Send every request at its time (seconds from now), at most `max_concurrency` at once.

    `on_answer` gets the number of each request and its answer, as they end; nothing is kept here but what is under
    way. A request that fails is an answer with an error, never an exception. Cancelling ends those under way, which
    then have no answer.
    """
    gate = None if max_concurrency is None else asyncio.Semaphore(max_concurrency)

    async def send(index: int, request: LoadRequest, due: float) -> None:
        try:
            answer = await ask(session, target, request, index)
        finally:
            if gate is not None:
                gate.release()
        answer.queue_time = answer.start - due
        on_answer(index, answer)

    # What there is by now stays: collecting garbage need not look at it, which would hold up everything.
    gc.collect()
    gc.freeze()
    try:
        async with open_session(target) as session, asyncio.TaskGroup() as group:
            start = time.perf_counter()
            for index, (request, at) in enumerate(zip(requests, times, strict=True)):
                due = start + at
                if (delay := due - time.perf_counter()) > 0:
                    await asyncio.sleep(delay)
                if gate is not None:
                    await gate.acquire()
                group.create_task(send(index, request, due))
    finally:
        # Only now have the last answers come.
        gc.unfreeze()


async def gather_load(
    target: LoadTarget, requests: Sequence[LoadRequest], times: Sequence[float], max_concurrency: int | None = None
) -> list[LoadResult]:
    """`run_load` of few requests; their answers in order."""
    answers: dict[int, LoadResult] = {}
    await run_load(target, requests, times, answers.__setitem__, max_concurrency)
    return [answers[index] for index in range(len(requests))]


async def wait_until_ready(target: LoadTarget, request: LoadRequest, seconds: float) -> LoadResult:
    """Ask until the server answers well, for so long; the last answer. 0 asks once."""
    deadline = time.monotonic() + seconds
    async with open_session(target) as session:
        while True:
            answer = await ask(session, target, request)
            if not answer.error or time.monotonic() >= deadline:
                return answer
            await asyncio.sleep(_RETRY_SECONDS)


class Probe:
    """Sends a short request again and again alongside a load, past its limits; a context manager, and then
    `answers`.
    """

    def __init__(self, target: LoadTarget, rate: float) -> None:
        """`rate` is per second; 0 sends none."""
        self.answers: list[LoadResult] = []
        self._target, self._rate = target, rate
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        if self._rate > 0:
            session = await self._stack.enter_async_context(open_session(self._target))
            task = asyncio.create_task(self._run(session))
            self._stack.callback(task.cancel)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _run(self, session: aiohttp.ClientSession) -> None:
        while True:
            self.answers.append(await ask(session, self._target, LoadRequest("Hi", 1, 1)))
            await asyncio.sleep(1 / self._rate)


class Profile:
    """Has the server trace its device, inside `async with`. Raises `EngineError` if it does not."""

    def __init__(self, target: LoadTarget, base_url: str) -> None:
        self._target, self._base_url = target, base_url

    async def __aenter__(self) -> None:
        await self._post("/start_profile")

    async def __aexit__(self, *_: object) -> None:
        await self._post("/stop_profile")

    async def _post(self, path: str) -> None:
        try:
            async with open_session(self._target) as session, session.post(self._base_url + path) as response:
                if response.status != 200:
                    text = " ".join((await response.text()).split())
                    raise EngineError(f"--profile: {path} returned {response.status}: {text[:300]}")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise EngineError(f"--profile: {path} failed: {error}") from None


def profiled(wanted: bool, target: LoadTarget, base_url: str) -> Any:
    """A context manager that traces if `wanted`."""
    return Profile(target, base_url) if wanted else nullcontext()
