"""Grammars compiled alongside the engine's loop, and kept."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import msgspec

from jaxllm.requests.structured_outputs import StructuredOutputsParams
from jaxllm.structured.backend import Backend, Grammar

THREADS: Final = 2
"""Grammars that are compiled at a time. They have no lower priority: whoever waits for Python's lock, which such a
thread holds now and then, would wait for all that is more important."""

STACK_BYTES: Final = 16 << 20
"""Stack of a compiling thread: twice what a grammar may need in the canary process (`canary.messages.Budget`)."""

MOST_BYTES: Final = 256 << 20
"""Memory of the compiled grammars that are kept."""

_LEAST_BYTES: Final = 1 << 20
_BYTES_PER_SOURCE_BYTE: Final = 150
"""As measured for schemas of 10 to 120 kB; for grammars that nobody has measured."""


@dataclass
class _Kept:
    future: Future[Grammar]
    size: int


class GrammarCompiler:
    """Compiles on threads of its own, each grammar once while it is kept; also what was wrong with one is kept.

    The backend is made with the first grammar. Thread-safe.
    """

    def __init__(self, make_backend: Callable[[], Backend], most_kept: int, most_bytes: int = MOST_BYTES) -> None:
        """At most `most_kept` grammars are kept, and `most_bytes` of them, those used last."""
        self._make_backend = make_backend
        self._most_kept, self._most_bytes = most_kept, most_bytes
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()
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

    def compile(self, form: StructuredOutputsParams, size: int = 0) -> "Future[Grammar]":
        """The grammar of `form`, now or later; its exception is a `RequestError` for what is wrong with it.

        `size` is the memory that it takes, in bytes, where that is known.
        """
        key = msgspec.msgpack.encode(form)
        with self._lock:
            kept = self._kept.pop(key, None)
            if kept is None:
                size = max(_LEAST_BYTES, size or _BYTES_PER_SOURCE_BYTE * len(key))
                kept = _Kept(self._submit(form), size)
                self._bytes += size
            self._kept[key] = kept
            while len(self._kept) > 1 and (len(self._kept) > self._most_kept or self._bytes > self._most_bytes):
                _, oldest = self._kept.popitem(last=False)
                self._bytes -= oldest.size
        return kept.future

    def _submit(self, form: StructuredOutputsParams) -> "Future[Grammar]":
        if self._pool is None:
            self._pool = ThreadPoolExecutor(THREADS, "grammar")
        # Python knows no other way to say it; a thread that somebody else starts meanwhile gets it as well.
        before = threading.stack_size(STACK_BYTES)
        try:
            return self._pool.submit(self._compile, form)
        finally:
            threading.stack_size(before)

    def _compile(self, form: StructuredOutputsParams) -> Grammar:
        return self.backend.compile(form)

    def cancel(self, future: "Future[Grammar]") -> None:
        """Nobody waits for this grammar any more: if it has not begun to be compiled, it is not."""
        with self._lock:
            if not future.cancel():
                return
            for key, kept in self._kept.items():
                if kept.future is future:
                    self._bytes -= kept.size
                    del self._kept[key]
                    break

    def close(self) -> None:
        """End the threads; what has not begun is given up."""
        with self._lock:
            self._kept.clear()
            if self._pool is not None:
                self._pool.shutdown(wait=False, cancel_futures=True)
