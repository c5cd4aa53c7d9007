"""Grammars looked at before a request is sent to the engine."""

import threading
from collections import OrderedDict
from concurrent.futures import Future
from typing import Final, Protocol

import msgspec

from jaxllm.config import StructuredOptions
from jaxllm.errors import RequestError
from jaxllm.structured.backend import Vocabulary, checker
from jaxllm.structured.canary.client import Canary
from jaxllm.structured.canary.messages import Budget, Verdict
from jaxllm.structured.complexity.check import check_complexity
from jaxllm.structured.options import with_options
from jaxllm.structured.params import StructuredOutputsParams

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


class CanaryChecker:
    """Has forms tried by a `Canary`."""

    def __init__(self, canary: Canary, options: StructuredOptions) -> None:
        """`options` are the engine's, which compiles the same."""
        self._canary, self._options = canary, options

    def start(self) -> None:
        """Start the process now, so that the first grammar need not wait for it."""
        self._canary.start()

    def ask(self, form: StructuredOutputsParams, owner: str = "") -> "Future[Verdict]":
        """Have a form tried, unless it was before; see `Canary.ask`."""
        form.validate()
        return self._canary.ask(with_options(form, self._options), owner)

    def check(self, form: StructuredOutputsParams) -> int:
        """Wait for the verdict. Raises `RequestError` and `QueueFullError`."""
        verdict = self.ask(form).result()
        if verdict.error is None:
            return verdict.size
        if verdict.parameter is None:
            raise RequestError(f"{form.kind}: {verdict.error}", form.kind)
        raise RequestError(verdict.error, verdict.parameter)

    def close(self) -> None:
        """End the process."""
        self._canary.close()


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
        check_complexity(form)
        checker(self._backend)(form)
        with self._lock:
            self._right[key] = None
            if len(self._right) > MOST_KNOWN:
                self._right.popitem(last=False)
        return 0

    def close(self) -> None:
        """Nothing is held."""


def make_canary_checker(options: StructuredOptions, vocabulary: Vocabulary) -> CanaryChecker:
    """A checker for an engine with these options. Raises `RequestError` where processes cannot fork."""
    return CanaryChecker(Canary(options.structured_outputs_backend, vocabulary, Budget()), options)
