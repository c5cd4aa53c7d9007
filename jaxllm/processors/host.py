"""One logits processor that runs on the host, and the requests that use it in places which they keep.

Axis letters: n rows of a step, B places, V vocabulary.
"""

import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop
from typing import Any

import numpy as np
import numpy.typing as npt

from jaxllm.config import EngineConfig
from jaxllm.errors import ConfigError
from jaxllm.processors.interface import AdapterLogitsProcessor, BatchUpdate
from jaxllm.processors.loading import label
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams

logger = logging.getLogger(__name__)

SLOW_SECONDS = 0.05
"""A processor that takes longer for a step is named in the log."""
SECONDS_BETWEEN_LOGS = 60.0

Float32Array = npt.NDArray[np.float32]


@dataclass
class _Place:
    index: int
    output: list[int]


class HostProcessor:
    """A processor in the shape of vLLM's: it is told who comes and goes, and gets the logits of those that use it."""

    def __init__(self, kind: type, config: EngineConfig) -> None:
        """Raises `ConfigError` where the class cannot be made."""
        self.name = label(kind)
        self._torch = _torch_of(kind)
        try:
            device = "cpu" if self._torch is None else self._torch.device("cpu")
            self._processor: Any = kind(config, device, False)
            self.is_argmax_invariant = bool(self._processor.is_argmax_invariant())
        except Exception as error:
            raise ConfigError(f"logits_processors={self.name!r}: {type(error).__name__}: {error}") from error
        self._places: dict[Request, _Place] = {}
        self._free: list[int] = []
        self._size = 0
        self._removed: set[int] = set()
        self._last_log = -SECONDS_BETWEEN_LOGS

    def uses(self, params: SamplingParams) -> bool:
        """Whether to process such a request: all, unless the class says otherwise. Raises what that does."""
        if self.is_argmax_invariant and params.greedy:
            return False
        asked = getattr(self._processor, "uses", None)
        return True if asked is None else bool(asked(params))

    def apply(
        self, requests: Sequence[Request], outputs: Sequence[npt.NDArray[np.int32]], logits: Float32Array
    ) -> tuple[Float32Array, dict[int, str]]:
        """The logits float32 [n, V] of these requests as they shall be, after these tokens of each.

        `logits` may be changed. Where the processor has failed, the rows and what is to be told of it.
        """
        began = time.monotonic()
        failures: dict[int, Exception] = {}
        try:
            changed = self._apply(requests, outputs, logits)
            if isinstance(self._processor, AdapterLogitsProcessor) and self._processor.failures:
                found = self._processor.failures
                indexes = [self._places[request].index for request in requests]
                failures = {row: found[index] for row, index in enumerate(indexes) if index in found}
                for row, error in failures.items():
                    name = requests[row].request_id
                    logger.error("logits processor %s failed for %s", self.name, name, exc_info=error)
        except Exception as error:
            logger.exception("logits processor %s failed", self.name)
            changed, failures = logits, dict.fromkeys(range(len(requests)), error)
        seconds, now = time.monotonic() - began, time.monotonic()
        if seconds > SLOW_SECONDS and now - self._last_log >= SECONDS_BETWEEN_LOGS:
            self._last_log = now
            logger.warning(
                "logits processor %s took %.0f ms for %d rows, and delays all requests of the engine",
                self.name,
                1000 * seconds,
                len(requests),
            )
        return changed, {
            row: f"logits processor {self.name} failed: {type(error).__name__}" for row, error in failures.items()
        }

    def forget(self, request: Request) -> None:
        """A request has ended, or is not in a step: its place is free."""
        place = self._places.pop(request, None)
        if place is not None:
            self._removed.add(place.index)

    def _apply(
        self, requests: Sequence[Request], outputs: Sequence[npt.NDArray[np.int32]], logits: Float32Array
    ) -> Float32Array:
        self._processor.update_state(self._update(requests, outputs))
        # Only now: a processor that has failed is told once more.
        self._removed.clear()
        index = np.array([self._places[request].index for request in requests], np.intp)
        in_order = len(index) == self._size and bool((index == np.arange(self._size)).all())
        given = logits
        if not in_order:
            given = np.zeros((self._size, logits.shape[1]), np.float32)
            given[index] = logits
        found = self._processor.apply(given if self._torch is None else self._torch.from_numpy(given))
        changed = np.asarray(found)
        if changed.shape != given.shape or changed.dtype.kind != "f":
            raise ValueError(f"apply returned {changed.dtype} {changed.shape} but must return float32 {given.shape}")
        changed = changed.astype(np.float32, copy=False)
        return changed if in_order else changed[index]

    def _update(self, requests: Sequence[Request], outputs: Sequence[npt.NDArray[np.int32]]) -> BatchUpdate | None:
        """Give places to those that have none, and let outputs grow; what has changed since the last step.

        Requests that are not in this step have no place: they come back as new ones, with their output.
        """
        for request in self._places.keys() - set(requests):
            self.forget(request)
        if self._removed:
            used = {place.index for place in self._places.values()}
            self._size = max(used, default=-1) + 1
            self._free = sorted(set(range(self._size)) - used)
        added = []
        for request, output in zip(requests, outputs, strict=True):
            place = self._places.get(request)
            if place is None:
                place = self._places[request] = _Place(self._new_index(), output.tolist())
                added.append((place.index, request.params, request.prompt_token_ids.tolist(), place.output))
            else:
                place.output += output[len(place.output) :].tolist()
        # An index that has a new owner already is only added: so it does not matter which comes first.
        removed = sorted(self._removed.difference(index for index, *_ in added), reverse=True)
        return BatchUpdate(self._size, removed, added) if added or removed else None

    def _new_index(self) -> int:
        if self._free:
            return heappop(self._free)
        self._size += 1
        return self._size - 1


def _torch_of(kind: type) -> Any:
    """The module `torch`, if the class, or one that it is made from, was written with it: only then it gets tensors."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    modules = [sys.modules.get(each.__module__) for each in kind.__mro__]
    return torch if any(getattr(module, "torch", None) is torch for module in modules) else None
