"""Adapters on the host, as the slots of an engine take them, read by a thread of their own."""

from collections import OrderedDict
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from jaxllm.errors import JaxLLMError, RequestError, RequestFaultError, quoted
from jaxllm.requests.lora_request import LoRARequest


class AdapterKey(NamedTuple):
    """What an adapter is known by."""

    name: str
    path: str
    number: int
    """`lora_int_id`. A server gives each adapter that it loads another one."""
    version: int
    """Differs between adapters that had the same name, path and number one after the other."""

    def is_of(self, lora: LoRARequest) -> bool:
        """Whether this is the adapter that a request means."""
        return (self.name, self.path, self.number) == (lora.lora_name, lora.lora_path, lora.lora_int_id)


@dataclass(frozen=True)
class HostAdapter:
    """An adapter in memory."""

    digest: bytes
    """sha256 of its content."""
    stages: tuple[tuple[np.ndarray, ...], ...]
    """For each stage of layers what one slot has of each array of its slots, in order: the inputs of `SET_ADAPTER`."""
    num_labels: int | None = None
    """Labels of the classifier that it brings along, if it does."""
    invocation: tuple[int, ...] = ()
    """The tokens in a prompt from whose last occurrence on the adapter counts (aLoRA). Empty: from the start on."""

    def start(self, prompt: npt.NDArray[np.int32]) -> int:
        """The first position [T] that has the adapter, `NEVER` where the prompt does not have the invocation."""
        if not self.invocation:
            return 0
        size = len(self.invocation)
        if size > len(prompt):
            return NEVER
        places = np.lib.stride_tricks.sliding_window_view(prompt, size)
        found = np.flatnonzero((places == np.array(self.invocation)).all(axis=1))
        return int(found[-1]) if len(found) else NEVER


NEVER = 2**31 - 1
"""A position that no token has."""

Read = Callable[[LoRARequest], HostAdapter]
"""Reads an adapter from its folder. Raises `RequestError` for a folder that holds none, or one of another model."""


class AdapterStore:
    """The adapters on the host: those that were used last, at most `capacity`, and those in use."""

    def __init__(self, read: Read, capacity: int) -> None:
        self._read, self._capacity = read, capacity
        self._adapters: OrderedDict[AdapterKey, HostAdapter] = OrderedDict()  # used longest ago first
        self._reading: dict[AdapterKey, Future[HostAdapter]] = {}
        # One thread: a folder is read from disk, and two at a time would take two adapters' memory.
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="adapters")

    def __contains__(self, key: AdapterKey) -> bool:
        return key in self._adapters

    def __getitem__(self, key: AdapterKey) -> HostAdapter:
        self._adapters.move_to_end(key)
        return self._adapters[key]

    def __len__(self) -> int:
        return len(self._adapters)

    @property
    def is_reading(self) -> bool:
        """Whether `ready` may have something to say."""
        return bool(self._reading)

    def begin(self, key: AdapterKey, request: LoRARequest) -> None:
        """Read an adapter, unless it is here or being read."""
        if key not in self._adapters and key not in self._reading:
            self._reading[key] = self._pool.submit(self._read, request)

    def ready(self, in_use: Collection[AdapterKey]) -> list[tuple[AdapterKey, JaxLLMError | None]]:
        """Adapters that have been read since the last call, or why they could not be. Those `in_use` stay."""
        found: list[tuple[AdapterKey, JaxLLMError | None]] = []
        for key, future in list(self._reading.items()):
            if not future.done():
                continue
            del self._reading[key]
            error = future.exception()
            if error is None:
                self._adapters[key] = future.result()
                found.append((key, None))
            elif isinstance(error, JaxLLMError):
                found.append((key, error))
            else:
                found.append((key, _fault(key, error)))
        if found:
            self.shrink({key for key, _ in found}.union(in_use))
        return found

    def wait(self, seconds: float) -> None:
        """Wait until an adapter has been read, but not for longer."""
        if self._reading:
            wait(self._reading.values(), seconds, "FIRST_COMPLETED")

    def drop(self, key: AdapterKey) -> None:
        """Forget an adapter."""
        self._adapters.pop(key, None)
        future = self._reading.pop(key, None)
        if future is not None:
            future.cancel()

    def close(self) -> None:
        """Read no more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def shrink(self, kept: Collection[AdapterKey]) -> None:
        """Forget those that were used longest ago, as long as there are more than `capacity`, but none of `kept`."""
        for key in list(self._adapters):
            if len(self._adapters) <= self._capacity:
                return
            if key not in kept:
                del self._adapters[key]


def _fault(key: AdapterKey, error: BaseException) -> JaxLLMError:
    if isinstance(error, MemoryError):
        return RequestError(f"adapter {quoted(key.name)} does not fit into the host's memory", "model")
    fault = RequestFaultError(f"reading adapter {quoted(key.name)} failed in the server: {type(error).__name__}")
    fault.__cause__ = error
    return fault
