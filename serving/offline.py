"""Runs the requests of one call to their end: what the methods of `LLM` have in common."""

import itertools
import threading
from collections.abc import Sequence
from typing import Any, TypeVar

from jaxllm.serving.interrupts import DeferredInterrupt
from jaxllm.serving.progress import GenerationProgress, UseTqdm
from jaxllm.serving.text_engine import Prepared, TextEngine

Request = TypeVar("Request", bound=Prepared)


class OfflineRuns:
    """Names requests and runs them, one call after the other: threads take turns."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._ids = itertools.count()

    def names(self, count: int) -> list[str]:
        """Ids for so many requests."""
        return [str(next(self._ids)) for _ in range(count)]

    def run(self, engine: TextEngine[Request], requests: Sequence[Request], use_tqdm: UseTqdm) -> list[Any]:
        """The results of prepared requests, in their order, with a progress bar.

        Whatever interrupts it, none of them stays behind in the engine.
        """
        finished: dict[str, Any] = {}
        with (
            self.lock,
            GenerationProgress(len(requests), use_tqdm) as progress,
            DeferredInterrupt() as interrupt,
        ):
            try:
                engine.add(requests)
                while engine.has_unfinished_requests():
                    outputs = engine.step()
                    finished.update((output.request_id, output) for output in outputs)
                    progress.update(outputs)
                    interrupt.check()
            except BaseException:
                engine.abort_all()
                raise
        return [finished[request.request_id] for request in requests]
