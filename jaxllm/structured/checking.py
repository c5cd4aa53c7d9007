"""Grammars looked at before a request is sent to the engine, where that tells who asks at once what is wrong."""

import threading
from collections import OrderedDict
from typing import Final

import msgspec

from jaxllm.structured.backend import checker
from jaxllm.structured.params import StructuredOutputsParams

MOST_KNOWN: Final = 256


class FormChecker:
    """Remembers which forms are right, as many requests bring the same. Thread-safe."""

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._right: OrderedDict[bytes, None] = OrderedDict()
        self._lock = threading.Lock()

    def check(self, form: StructuredOutputsParams) -> None:
        """Raise `RequestError` for a grammar that is wrong, not supported or too complex, as far as one can tell.

        What depends on the tokenizer, or is seen only when an output goes that way, the engine finds.
        """
        key = msgspec.msgpack.encode(form)
        with self._lock:
            if key in self._right:
                self._right.move_to_end(key)
                return
        checker(self._backend)(form)
        with self._lock:
            self._right[key] = None
            if len(self._right) > MOST_KNOWN:
                self._right.popitem(last=False)
