"""The two queues between an event loop and the engine: what is to be sent to it, and what it has sent."""

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from msgspec.structs import replace

from jaxllm.serving.ipc.messages import Abort, Add, Pool, ToEngine
from jaxllm.serving.ipc.wire import CREDIT

MOST_EVENTS = 2
"""Messages that wait for the event loop. When it has no time, more stay with the engine, where they merge."""

Event = TypeVar("Event")


class SendQueue:
    """Messages to one engine process, in order; none is lost. Thread-safe.

    The engine takes messages between its steps. At most `CREDIT` are on their way to it; more wait here, where an
    abort removes what was not sent yet, and aborts merge. What waits is thus bounded by the requests in flight,
    however long the engine takes nothing and however many clients come and go meanwhile.
    """

    def __init__(self, transmit: Callable[[ToEngine], None], credit: int = CREDIT) -> None:
        """`transmit` sends a message at once, and is called by one thread at a time, from `open` to `close`."""
        self._transmit = transmit
        self._credit = credit
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: dict[int, ToEngine] = {}
        self._adds: dict[str, int] = {}  # engine's request id -> the message that waits and has it
        self._abort: int | None = None  # the abort that waits
        self._is_open = False
        self._closed = False
        self._sent = 0
        self._taken = 0

    def __len__(self) -> int:
        """Messages that wait."""
        return len(self._waiting)

    def open(self) -> None:
        """The engine takes messages from now on."""
        with self._lock:
            self._is_open = True
            self._flush()

    def put(self, message: ToEngine) -> None:
        """Send a message, now or when the engine takes it. After `close` it is forgotten."""
        with self._lock:
            if self._closed:
                return
            if not self._waiting and self._may_send():
                self._send(message)
                return
            self._keep(message)
            self._flush()

    def grant(self, taken: int) -> None:
        """The engine has taken so many messages in all."""
        with self._lock:
            self._taken = taken
            if self._waiting:
                self._flush()

    def close(self) -> list[ToEngine]:
        """Send nothing more. Returns the requests that were never sent: the engine knows nothing of them."""
        with self._lock:
            left: list[ToEngine] = [each for each in self._waiting.values() if isinstance(each, Add | Pool)]
            self._closed, self._waiting, self._adds, self._abort = True, {}, {}, None
            return left

    def _may_send(self) -> bool:
        return self._is_open and not self._closed and self._sent - self._taken < self._credit

    def _send(self, message: ToEngine) -> None:
        self._sent += 1
        self._transmit(message)

    def _flush(self) -> None:
        while self._waiting and self._may_send():
            number, message = next(iter(self._waiting.items()))
            self._drop(number)
            self._send(message)

    def _keep(self, message: ToEngine) -> None:
        if isinstance(message, Abort):
            sent = self._without_unsent(message.request_ids)
            if not sent:
                return
            if self._abort is not None:
                earlier = self._waiting[self._abort]
                assert isinstance(earlier, Abort)
                self._waiting[self._abort] = Abort([*earlier.request_ids, *sent])
                return
            message = Abort(sent)
        number = next(self._numbers)
        self._waiting[number] = message
        if isinstance(message, Abort):
            self._abort = number
        self._adds.update((name, number) for name in request_ids(message))

    def _drop(self, number: int) -> None:
        message = self._waiting.pop(number)
        if number == self._abort:
            self._abort = None
        for name in request_ids(message):
            self._adds.pop(name, None)

    def _without_unsent(self, request_ids: Iterable[str]) -> list[str]:
        """Forget requests that wait here; returns those that the engine may have."""
        sent = []
        for name in request_ids:
            number = self._adds.pop(name, None)
            if number is None:
                sent.append(name)
                continue
            message = self._waiting[number]
            left = [each for each in message.sequences if each.request_id != name] if isinstance(message, Add) else []
            if left:
                # The same place in the order.
                self._waiting[number] = replace(message, sequences=left)
            else:
                del self._waiting[number]
        return sent


def request_ids(message: ToEngine) -> list[str]:
    """The engine's ids of the requests that a message brings."""
    match message:
        case Add():
            return [each.request_id for each in message.sequences]
        case Pool(name):
            return [name]
    return []


class EventQueue(Generic[Event]):
    """Hands events from a thread to `take`, on the event loop of the one who makes it, in their order."""

    def __init__(self, take: Callable[[list[Event]], None]) -> None:
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._events: list[Event] = []
        self._changed = threading.Condition()
        self._closed = False

    def put(self, event: Event) -> None:
        """In the thread: hand this over; waits while `MOST_EVENTS` wait already."""
        with self._changed:
            while len(self._events) >= MOST_EVENTS and not self._closed:
                self._changed.wait()
        self.put_at_once(event)

    def put_at_once(self, event: Event) -> None:
        """In the thread: hand this over, however much waits."""
        with self._changed:
            self._events.append(event)
            first = len(self._events) == 1
        if first:
            # One wake-up for all that arrives until the event loop has time.
            self._loop.call_soon_threadsafe(self._hand_over)

    def close(self) -> None:
        """The event loop is about to end: the thread must not wait for it."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _hand_over(self) -> None:
        with self._changed:
            events, self._events = self._events, []
            self._changed.notify()
        self._take(events)
