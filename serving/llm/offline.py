"""Runs the requests of calls to their ends: what the methods of `LLM` have in common."""

import itertools
import threading
import time
from collections import deque
from collections.abc import Collection, Generator, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from jaxllm.errors import EngineError, RequestError, RequestFaultError
from jaxllm.serving.llm.interrupts import DeferredInterrupt
from jaxllm.serving.llm.progress import GenerationProgress, UseTqdm
from jaxllm.serving.llm.weights import check_runs, halted
from jaxllm.serving.text.engine import Prepared, TextEngine

Request = TypeVar("Request", bound=Prepared)
_HALTED_SECONDS = 0.02


class OfflineRuns:
    """Names requests and runs them. Threads take turns: by the call in `run`, by the step in `stream`.

    Streams go on beneath a call that runs meanwhile, even of the thread that reads them: whoever steps the engine
    leaves the outputs of a stream where its reader finds them.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._ids = itertools.count()
        self._streams: dict[str, deque[Any]] = {}
        self._left: deque[list[str]] = deque()
        self._queued: dict[str, Any] = {}

    def names(self, count: int) -> list[str]:
        """Ids for so many requests."""
        return [str(next(self._ids)) for _ in range(count)]

    def run(self, engine: TextEngine[Request], requests: Sequence[Request], use_tqdm: UseTqdm) -> list[Any]:
        """The results of prepared requests, in their order, with a progress bar.

        Whatever interrupts it, none of them stays behind in the engine.
        """
        names = [request.request_id for request in requests]
        with self.lock:
            return self._run(engine, requests, names, {}, use_tqdm)

    def enqueue(self, engine: TextEngine[Request], requests: Sequence[Request]) -> None:
        """Add prepared requests for `run_queued`; until then, they run beneath other calls."""
        with self.lock:
            engine.add(requests)
            self._queued.update(dict.fromkeys((request.request_id for request in requests), None))

    def run_queued(self, engine: TextEngine[Request], use_tqdm: UseTqdm) -> list[Any]:
        """The results of all that was queued, in that order, as `run`."""
        with self.lock:
            check_runs(engine.engine)
            queued, self._queued = self._queued, {}
            finished = {name: output for name, output in queued.items() if output is not None}
            failed = next((output for output in finished.values() if _is_refusal(output)), None)
            if failed is not None:
                engine.abort_request(list(queued))
                raise failed
            return self._run(engine, (), list(queued), finished, use_tqdm)

    def _run(
        self,
        engine: TextEngine[Request],
        requests: Sequence[Request],
        order: Sequence[str],
        finished: dict[str, Any],
        use_tqdm: UseTqdm,
    ) -> list[Any]:
        """Add `requests`, and run until those of `order` are in `finished`: these, in that order.

        One that is rejected ends all of them, as the caller is to blame. Where the code here has failed for one, the
        others go on to their ends, and are with the error.
        """
        names = set(order)
        with GenerationProgress(len(order), use_tqdm) as progress, DeferredInterrupt() as interrupt:
            check_runs(engine.engine)
            try:
                progress.update(found for found in finished.values() if not isinstance(found, RequestError))
                engine.add(requests)
                while len(finished) < len(names) and engine.has_unfinished_requests():
                    outputs = self._step(engine, names, finished)
                    finished.update((output.request_id, output) for output in outputs)
                    progress.update(outputs)
                    interrupt.check()
            except BaseException:
                with suppress(EngineError):  # the one on its way says more
                    engine.abort_request(names)
                raise
        fault = next((found for found in finished.values() if isinstance(found, RequestFaultError)), None)
        if fault is not None:
            found = [finished.get(name) for name in order]
            fault.results = [None if isinstance(each, RequestFaultError) else each for each in found]
            raise fault
        return [finished[name] for name in order]

    def stream(
        self, engine: TextEngine[Request], requests: Sequence[Request]
    ) -> Generator[tuple[int, Any], None, None]:
        """Yield the outputs of prepared requests as they come, each with the place of its request.

        Closing the generator, or dropping it, aborts what is not finished.
        """
        places = {request.request_id: place for place, request in enumerate(requests)}
        arrived: deque[Any] = deque()
        with self.lock:
            check_runs(engine.engine)
            engine.add(requests)
            self._streams.update(dict.fromkeys(places, arrived))
        try:
            open_requests = set(places)
            while open_requests:
                while not arrived:
                    with self.lock, DeferredInterrupt():
                        if not arrived:
                            self._step(engine, ())
                    if not arrived and halted(engine.engine):
                        # Without the lock, so that another thread can wake the engine up.
                        time.sleep(_HALTED_SECONDS)
                output = arrived.popleft()
                if isinstance(output, RequestError):
                    raise output
                if output.finished:
                    open_requests.remove(output.request_id)
                yield places[output.request_id], output
        finally:
            self._leave(engine, list(places))

    def step(self, engine: TextEngine[Any]) -> None:
        """Run one step for those who read streams. By whoever holds the lock."""
        self._step(engine, ())

    def _step(
        self, engine: TextEngine[Request], names: Collection[str], faults: dict[str, Any] | None = None
    ) -> list[Any]:
        """Run one step: the outputs of `names`. Outputs of others are put where their readers look.

        Raises `RequestError` when one of `names` is rejected; a `RequestFaultError` is put into `faults`.
        """
        while self._left:
            engine.abort_request(self._left.popleft())
        outputs, refused = engine.advance()
        strangers: list[tuple[str, RequestError]] = []
        own: list[RequestError] = []
        for name, error in refused:
            failure = type(error)(f"request {name}: {error}", error.parameter)
            if name in self._streams:
                self._streams[name].append(failure)
            elif name in self._queued:
                self._queued[name] = failure
            elif name in names and faults is not None and isinstance(failure, RequestFaultError):
                faults[name] = failure
            elif name in names:
                own.append(failure)
            else:
                strangers.append((name, error))
        ours: list[Any] = []
        others: list[Any] = []
        for output in outputs:
            if output.request_id in self._queued:
                self._queued[output.request_id] = output
            elif output.request_id in self._streams:
                self._streams[output.request_id].append(output)
            else:
                (ours if output.request_id in names else others).append(output)
        # A stream may have been left in the middle of the step.
        left = set(itertools.chain.from_iterable(self._left))
        engine.keep([output for output in others if output.request_id not in left], strangers)
        if own:
            raise own[0]
        return ours

    def _leave(self, engine: TextEngine[Request], names: list[str]) -> None:
        """Forget a stream. Its generator may be dropped in the middle of anything, so also of a step of this thread."""
        for name in names:
            self._streams.pop(name, None)
        self._left.append(names)
        if self.lock.acquire(blocking=False):
            try:
                with suppress(EngineError, IndexError):  # closed already; another thread was quicker
                    engine.abort_request(self._left.popleft())
            finally:
                self.lock.release()


def _is_refusal(output: Any) -> bool:
    return isinstance(output, RequestError) and not isinstance(output, RequestFaultError)
