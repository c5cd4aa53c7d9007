"""The LoRA adapters of an engine: known by name, read when they are first asked for, in a slot while requests run."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

import numpy as np
from jax.errors import JaxRuntimeError

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
    """A request of an engine, of whichever kind."""

    lora_request: LoRARequest | None


Request = TypeVar("Request", bound=AdaptedRequest)


@dataclass(frozen=True)
class Ready(Generic[Request]):
    """A request that has its adapter in a slot, or an error in place of that."""

    request: Request
    slot: int = -1
    digest: bytes = b""
    error: JaxLLMError | None = None


class Adapters(Generic[Request]):
    """Which adapters there are, and which requests have theirs.

    A name stands for one folder at a time. What a folder holds is read once; `load_inplace` reads it again.
    """

    def __init__(self, read: Read, write: SetAdapter, *, num_slots: int, capacity: int) -> None:
        """`write` brings the arrays of an adapter, by stages, to a slot on the devices."""
        self._store = AdapterStore(read, max(capacity, num_slots))
        self._slots: AdapterSlots[AdapterKey, Request] = AdapterSlots(num_slots, self._write_slot)
        self._write, self._written = write, dict[int, HostAdapter]()
        self._use = AdapterUse()
        self._known: dict[str, LoRARequest] = {}
        self._versions: dict[str, int] = {}
        self._reading: dict[Request, AdapterKey] = {}
        self._keys: dict[Request, AdapterKey] = {}
        self._asked: set[AdapterKey] = set()
        self._errors: dict[AdapterKey, JaxLLMError] = {}
        self._failed: list[Ready[Request]] = []

    def begin(self, request: Request) -> None:
        """A request asks for an adapter; `ready` says when it has it."""
        assert request.lora_request is not None
        key = self.register(request.lora_request)
        self._keys[request] = key
        self._use.wait(key.name)
        if key in self._store:
            self._slots.want(request, key)
        else:
            self._reading[request] = key
            self._store.begin(key, request.lora_request)

    def register(self, lora: LoRARequest) -> AdapterKey:
        """Know an adapter by its name. Another folder of that name, or `load_inplace`, takes the place of the old."""
        known = self._known.get(lora.lora_name)
        version = self._versions.setdefault(lora.lora_name, 0)
        if known is not None and (lora.load_inplace or known.lora_path != lora.lora_path):
            self._forget_key(AdapterKey(lora.lora_name, known.lora_path, version))
            version = self._versions[lora.lora_name] = version + 1
        self._known[lora.lora_name] = replace(lora, load_inplace=False)
        return AdapterKey(lora.lora_name, lora.lora_path, version)

    def load(self, lora: LoRARequest, *, again: bool = False) -> bool:
        """Read an adapter before anybody asks for it. False while it is being read: ask `again` then.

        Raises the `RequestError` that reading it ended with.
        """
        if again:
            key = AdapterKey(lora.lora_name, lora.lora_path, self._versions.get(lora.lora_name, 0))
            self._take_read()
        else:
            key = self.register(lora)
            self._asked.add(key)
            if key not in self._store:
                self._store.begin(key, lora)
        error = self._errors.pop(key, None)
        is_here = key in self._store
        if error is not None or is_here:
            self._asked.discard(key)
        elif key not in self._asked:
            error = RequestError(f"adapter {quoted(lora.lora_name)} was replaced or removed while it was read")
        if error is not None:
            raise error
        return is_here

    def remove(self, name: str) -> bool:
        """Forget an adapter; requests that have it go on. False if there is none of that name."""
        lora = self._known.pop(name, None)
        if lora is None:
            return False
        self._forget_key(AdapterKey(name, lora.lora_path, self._versions[name]))
        self._versions[name] += 1
        return True

    def pin(self, name: str) -> bool:
        """Let an adapter keep the slot that it gets. False if there is none of that name."""
        lora = self._known.get(name)
        if lora is None:
            return False
        self._slots.pin(AdapterKey(name, lora.lora_path, self._versions[name]))
        return True

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
                found.append(Ready(request, slot, self._store[key].digest))
        return found

    def stats(self) -> AdapterStats:
        """Which adapters are in use and waited for, and how often adapters were read and written."""
        return self._use.stats()

    def _take_read(self) -> None:
        """Take over what has been read."""
        if not self._store.is_reading:
            return  # As in most steps, while many requests may run.
        for key, error in self._store.ready(set(self._keys.values()) | set(self._slots.keys)):
            for request in [each for each, wanted in self._reading.items() if wanted == key]:
                del self._reading[request]
                if error is None:
                    self._slots.want(request, key)
                else:
                    self._failed.append(Ready(request, error=error))
            if error is None:
                self._use.count_read()
            else:
                if key in self._asked:
                    self._errors[key] = error
                if key.name in self._known:
                    self._drop_unreadable(key)

    def wait(self) -> None:
        """Wait a little for an adapter that is being read."""
        self._store.wait(WAIT_SECONDS)

    def forget(self, request: Request) -> None:
        """A request has ended, or will not run."""
        key = self._keys.pop(request, None)
        if key is None:
            return
        self._use.end(key.name, has_run=self._slots.has_slot(request))
        self._reading.pop(request, None)
        self._slots.forget(request)

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

    def _drop_unreadable(self, key: AdapterKey) -> None:
        # Whoever asks next has it read once more: the folder may be whole by then.
        if self._versions[key.name] == key.version:
            del self._known[key.name]

    def _forget_key(self, key: AdapterKey) -> None:
        self._slots.drop(key)
        self._asked.discard(key)
        if key not in self._keys.values():
            self._store.drop(key)


def _write_fault(key: AdapterKey, error: WriteError) -> RequestFaultError:
    cause = error.__cause__
    fault = RequestFaultError(
        f"bringing adapter {quoted(key.name)} to the devices failed in the server: {type(cause).__name__}"
    )
    fault.__cause__ = cause
    return fault
