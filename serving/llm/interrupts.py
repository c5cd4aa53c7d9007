"""Ctrl-C between two steps of the engine, not in the middle of one."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Self


class DeferredInterrupt:
    """While entered, Ctrl-C raises `KeyboardInterrupt` only where `check` is called, so that no step is torn apart.

    A second Ctrl-C raises at once. Does nothing outside the main thread, or where the program has a handler of its own.
    """

    def __init__(self) -> None:
        self._seen = False
        self._active = False

    def __enter__(self) -> Self:
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._handle)
            self._active = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._active:
            self._active = False
            signal.signal(signal.SIGINT, signal.default_int_handler)
            if kind is None:
                self.check()

    def check(self) -> None:
        """Raise `KeyboardInterrupt` if Ctrl-C was pressed."""
        if self._seen:
            self._seen = False
            raise KeyboardInterrupt

    def _handle(self, _signal: int, _frame: FrameType | None) -> None:
        if self._seen:
            raise KeyboardInterrupt
        self._seen = True
