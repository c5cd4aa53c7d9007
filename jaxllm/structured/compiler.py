"""Grammars compiled beside the engine's loop, and kept."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import msgspec

from jaxllm.structured.backend import Backend, Grammar
from jaxllm.structured.params import StructuredOutputsParams

THREADS: Final = 2
"""Grammars that are compiled at a time."""

MOST_BYTES: Final = 4 << 20
"""Source of the grammars that are kept. Compiled they take several times as much."""


class GrammarCompiler:
    """Compiles on threads of its own, each grammar once while it is kept; also what was wrong with one is kept.

    The backend is made with the first grammar. Thread-safe.
    """

    def __init__(self, make_backend: Callable[[], Backend], most_kept: int) -> None:
        """`most_kept` grammars are kept, those used last."""
        self._make_backend = make_backend
        self._most_kept = most_kept
        self._kept: OrderedDict[bytes, Future[Grammar]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()
        self._backend_lock = threading.Lock()
        self._backend: Backend | None = None
        self._pool: ThreadPoolExecutor | None = None

    @property
    def backend(self) -> Backend:
        """The backend, made now if it was not before. Raises `RequestError`."""
        with self._backend_lock:
            if self._backend is None:
                self._backend = self._make_backend()
            return self._backend

    def compile(self, form: StructuredOutputsParams) -> "Future[Grammar]":
        """The grammar of `form`, now or later; its exception is a `RequestError` for what is wrong with it."""
        key = msgspec.msgpack.encode(form)
        with self._lock:
            found = self._kept.pop(key, None)
            if found is None:
                if self._pool is None:
                    self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="grammar")
                found = self._pool.submit(self._compile, form)
                self._bytes += len(key)
            self._kept[key] = found
            while len(self._kept) > 1 and (len(self._kept) > self._most_kept or self._bytes > MOST_BYTES):
                oldest, _ = self._kept.popitem(last=False)
                self._bytes -= len(oldest)
        return found

    def _compile(self, form: StructuredOutputsParams) -> Grammar:
        return self.backend.compile(form)

    def close(self) -> None:
        """End the threads; what has not begun is given up."""
        with self._lock:
            self._kept.clear()
            if self._pool is not None:
                self._pool.shutdown(wait=False, cancel_futures=True)
