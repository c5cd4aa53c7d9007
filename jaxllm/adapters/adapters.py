"""The LoRA adapters of an engine: known by name, read when they are first asked for, in a slot while requests run."""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
from jax.errors import JaxRuntimeError

from jaxllm.adapters.known import KnownAdapters
from jaxllm.adapters.slots import AdapterSlots, WriteError
from jaxllm.adapters.store import AdapterKey, AdapterStore, HostAdapter, Read
from jaxllm.adapters.use import AdapterStats, AdapterUse
from jaxllm.errors import EngineError, JaxLLMError, RequestError, RequestFaultError, quoted
from jaxllm.requests.lora_request import LoRARequest

SetAdapter = Callable[[int, Sequence[Sequence[np.ndarray]]], None]
"""Writes the arrays of an adapter, by stage, into a slot on the devices."""

WAIT_SECONDS = 0.05
"""How long an engine with nothing else to do waits for an adapter at a time."""


class AdaptedRequest(Hashable, Protocol):
    """A request of any kind of engine."""

    lora_request: LoRARequest | None


Request = TypeVar("Request", bound=AdaptedRequest)


@dataclass(frozen=True)
class Ready(Generic[Request]):
    """A request that has its adapter in a slot, or an error in place of that."""

    request: Request
    slot: int = -1
    adapter: HostAdapter | None = None
    error: JaxLLMError | None = None


@dataclass
class _Load:
    """An adapter that somebody waits for without a request."""

    key: AdapterKey
    is_here: bool
    error: JaxLLMError | None = None


class Adapters(Generic[Request]):
    """Which adapters there are, and which requests have theirs.

    An adapter is what has a name, a folder and a number: what it holds is read once, and again with `load_inplace`, or
    after the name was removed.
    """

    def __init__(self, read: Read, write: SetAdapter, *, num_slots: int, capacity: int) -> None:
        """`write` brings the arrays of an adapter, by stages, to a slot on the devices."""
        self._store = AdapterStore(read, max(capacity, num_slots))
        self._num_slots = num_slots
        self._slots: AdapterSlots[AdapterKey, Request] = AdapterSlots(num_slots, self._write_slot)
        self._write, self._written = write, dict[int, HostAdapter]()
        self._use = AdapterUse()
        self._known = KnownAdapters(self._forget_key)
        self._reading: dict[Request, AdapterKey] = {}
        self._keys: dict[Request, AdapterKey] = {}
        self._num_users = Counter[AdapterKey]()
        self._loads: dict[str, _Load] = {}
        self._failed: list[Ready[Request]] = []

    def begin(self, request: Request) -> None:
        """A request asks for an adapter; `ready` says when it has it."""
        assert request.lora_request is not None
        key = self._known.request(request.lora_request)
        self._keys[request] = key
        self._num_users[key] += 1
        self._use.wait(key.name)
        if key in self._store:
            self._slots.want(request, key)
        else:
            self._reading[request] = key
            self._store.begin(key, request.lora_request)

    def load(self, lora: LoRARequest, *, again: bool = False) -> bool:
        """Read an adapter before anybody asks for it. False while it is being read: ask `again` then.

        Another adapter of that name is forgotten; requests that have it go on. Raises the `RequestError` that reading
        it ended with.
        """
        name = lora.lora_name
        if again:
            self._take_read()
        else:
            key = self._known.load(lora)
            self._loads[name] = _Load(key, is_here=key in self._store)
            self._store.begin(key, lora)
        load = self._loads.get(name)
        if load is None or not load.key.is_of(lora):
            key_now = self._known.find(lora)
            if key_now is not None and key_now in self._store:
                return True  # Somebody else has asked for the same, and was told.
            raise RequestError(f"adapter {quoted(name)} was replaced or removed while it was read", "lora_request")
        if load.error is not None or load.is_here:
            del self._loads[name]
        if load.error is not None:
            raise load.error
        return load.is_here

    def remove(self, name: str) -> bool:
        """Forget an adapter; requests that have it go on. False if there is none of that name."""
        return self._known.remove(name)

    def pin(self, name: str) -> bool:
        """Let an adapter keep the slot that it gets. False if there is none of that name."""
        keys = list(self._known.named(name))
        for key in keys:
            self._slots.pin(key)
        return bool(keys)

    def write_again(self) -> None:
        """Bring what is in the slots there again: it depends on weights of the model that have been replaced."""
        for slot, adapter in self._written.items():
            self._write(slot, adapter.stages)

    def ready(self) -> list[Ready[Request]]:
        """Requests that have their adapter now, or cannot have it."""
        self._take_read()
        found, self._failed = self._failed, []
        for request, slot in self._slots.assign():
            key = self._keys[request]
            if isinstance(slot, WriteError):
                found.append(Ready(request, error=_write_fault(key, slot)))
            else:
                self._use.run(key.name)
                found.append(Ready(request, slot, self._store[key]))
        return found

    def stats(self) -> AdapterStats:
        """Which adapters are in use and waited for, and how often adapters were read and written."""
        return self._use.stats()

    def _take_read(self) -> None:
        """Take over what has been read."""
        if not self._store.is_reading:
            return  # As in most steps, while many requests may run.
        for key, error in self._store.ready(self._num_users.keys() | set(self._slots.keys)):
            for request in [each for each, wanted in self._reading.items() if wanted == key]:
                del self._reading[request]
                if error is None:
                    self._slots.want(request, key)
                else:
                    self._failed.append(Ready(request, error=error))
            load = self._loads.get(key.name)
            if load is not None and load.key == key:
                # It may have left the host again when the caller asks next.
                load.is_here, load.error = error is None, error
            if error is None:
                self._use.count_read()
            else:
                self._known.discard(key)

    def wait(self) -> None:
        """Wait a little for an adapter that is being read."""
        self._store.wait(WAIT_SECONDS)

    def forget(self, request: Request) -> None:
        """A request has ended, or will not run."""
        key = self._keys.pop(request, None)
        if key is None:
            return
        self._use.end(key.name, has_run=self._slots.has_slot(request))
        if self._reading.pop(request, None) is None:
            self._failed = [each for each in self._failed if each.request != request]
        self._slots.forget(request)
        self._num_users[key] -= 1
        if not self._num_users[key]:
            del self._num_users[key]
            if key not in self._known.named(key.name):
                self._store.drop(key)
            self._store.shrink(self._num_users.keys() | set(self._slots.keys))

    @property
    def num_known(self) -> int:
        """Adapters that are known by name."""
        return len(self._known)

    @property
    def num_on_host(self) -> int:
        """Adapters in the host's memory, other than those that are only in slots."""
        return len(self._store)

    def check_integrity(self, unfinished: Collection[Request]) -> None:
        """Assert that what is remembered belongs to these requests, to slots, or to known adapters."""
        assert self._keys.keys() <= set(unfinished)
        assert Counter(self._keys.values()) == self._num_users
        assert self._reading.keys() <= self._keys.keys()
        self._slots.check_integrity(unfinished)
        assert len(self._written) <= self._num_slots
        assert all(load.key in self._known.named(name) for name, load in self._loads.items() if load.error is None)

    def close(self) -> None:
        """Read no more."""
        self._store.close()

    def _write_slot(self, slot: int, key: AdapterKey) -> None:
        """Raises `WriteError` where the host failed. After an error of the devices nobody knows what slots hold."""
        self._written.pop(slot, None)
        adapter = self._store[key]
        try:
            self._write(slot, adapter.stages)
        except (EngineError, JaxRuntimeError):
            raise
        except Exception as error:
            raise WriteError from error
        self._written[slot] = adapter
        self._use.count_write()

    def _forget_key(self, key: AdapterKey) -> None:
        self._slots.drop(key)
        load = self._loads.get(key.name)
        if load is not None and load.key == key:
            del self._loads[key.name]
        if key not in self._num_users:
            self._store.drop(key)


def _write_fault(key: AdapterKey, error: WriteError) -> RequestFaultError:
    cause = error.__cause__
    fault = RequestFaultError(
        f"bringing adapter {quoted(key.name)} to the devices failed in the server: {type(cause).__name__}"
    )
    fault.__cause__ = cause
    return fault
