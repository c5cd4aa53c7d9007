"""Counts compilations where there should be none: after warm-up, inside a step."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import jax

from jaxllm.errors import EngineError

logger = logging.getLogger(__name__)

_COMPILED = "/jax/core/compile/backend_compile_duration"


class CompilationWatch:
    """Notices every compilation that happens inside `watching`, on the thread that entered it.

    Other code of the process may compile as it likes. `count` is the number seen so far. With `strict`, a
    compilation raises `EngineError` at the end of the watched block; otherwise it is logged as a warning.
    """

    def __init__(self, *, strict: bool) -> None:
        self.count = 0
        self._strict = strict
        self._seen: list[str] = []
        self._thread: int | None = None
        jax.monitoring.register_event_duration_secs_listener(self._listen)

    def close(self) -> None:
        """Stop listening."""
        jax.monitoring.unregister_event_duration_listener(self._listen)

    def _listen(self, event: str, duration_secs: float, **details: str | int) -> None:
        if event == _COMPILED and threading.get_ident() == self._thread:
            self._seen.append(f"{details.get('fun_name', 'a function')} in {duration_secs:.2f} s")

    @contextmanager
    def watching(self, what: object) -> Iterator[None]:
        """Watch this thread. `what` describes the shape at hand, for the message."""
        self._thread = threading.get_ident()
        try:
            yield
        finally:
            self._thread = None
        if self._seen:
            self._report(what)

    def _report(self, what: object) -> None:
        seen, self._seen = self._seen, []
        self.count += len(seen)
        message = f"compilation after warm-up for {what}: {', '.join(seen)}"
        if self._strict:
            raise EngineError(message)
        logger.warning(message)
