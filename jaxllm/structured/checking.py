"""Grammars looked at before a request is sent to the engine."""

import threading
from collections import OrderedDict
from typing import Final, Protocol

import msgspec

from jaxllm.requests.structured_outputs import StructuredOutputsParams
from jaxllm.structured.backend import checker

MOST_KNOWN: Final = 256


class FormChecker(Protocol):
    """Says which forms are right. Thread-safe."""

    def check(self, form: StructuredOutputsParams) -> int:
        """The bytes of memory that the compiled grammar takes; 0 if that is not known.

        Raises `RequestError` for a grammar that is wrong, not supported or too complex, as far as one can tell. What is
        seen only when an output goes that way, the engine finds.
        """

    def close(self) -> None:
        """Give back what it holds."""


class DirectChecker:
    """Looks at forms in this process, and remembers which are right, as many requests bring the same."""

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._right: OrderedDict[bytes, None] = OrderedDict()
        self._lock = threading.Lock()

    def check(self, form: StructuredOutputsParams) -> int:
        """Raise `RequestError` for what is wrong whatever the tokenizer."""
        key = msgspec.msgpack.encode(form)
        with self._lock:
            if key in self._right:
                self._right.move_to_end(key)
                return 0
        # Few requests have a form: starts are faster without the import.
        from jaxllm.structured.complexity.check import check_complexity

        check_complexity(form)
        checker(self._backend)(form)
        with self._lock:
            self._right[key] = None
            if len(self._right) > MOST_KNOWN:
                self._right.popitem(last=False)
        return 0

    def close(self) -> None:
        """Nothing is held."""
