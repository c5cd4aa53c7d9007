"""What a listening thread has for an event loop that may have no time."""

import asyncio
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

MOST_NEWS = 2
"""Messages that wait for the event loop. When it has no time, more stay with the engine, where they merge."""

News = TypeVar("News")


class Mailbox(Generic[News]):
    """Hands news from a thread to `take`, on the event loop of the one who makes it, in their order."""

    def __init__(self, take: Callable[[list[News]], None]) -> None:
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._news: list[News] = []
        self._changed = threading.Condition()
        self._closed = False

    def put(self, news: News) -> None:
        """In the thread: hand this over; waits while `MOST_NEWS` wait already."""
        with self._changed:
            while len(self._news) >= MOST_NEWS and not self._closed:
                self._changed.wait()
        self.put_at_once(news)

    def put_at_once(self, news: News) -> None:
        """In the thread: hand this over, however much waits."""
        with self._changed:
            self._news.append(news)
            first = len(self._news) == 1
        if first:
            # One wake-up for all that arrives until the event loop has time.
            self._loop.call_soon_threadsafe(self._empty)

    def close(self) -> None:
        """The event loop is about to end: the thread must not wait for it."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _empty(self) -> None:
        with self._changed:
            news, self._news = self._news, []
            self._changed.notify()
        self._take(news)
