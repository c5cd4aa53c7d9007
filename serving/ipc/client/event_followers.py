"""Reads the events of a group's engines, for the router."""

import asyncio

from jaxllm.config.engine_info import EngineInfo, KVEventSource
from jaxllm.serving.affinity.prefixes import KnownPrefixes
from jaxllm.serving.affinity.subscription import Subscription

_HERE = "127.0.0.1"


class EventFollowers:
    """A task for each engine that publishes events, where the router compares prompts. Belongs to an event loop."""

    def __init__(self, prefixes: KnownPrefixes | None, local_engines: int | None) -> None:
        """Engines below `local_engines` run on this machine; None: all do."""
        self._prefixes, self._local = prefixes, local_engines
        self._tasks: dict[int, tuple[KVEventSource, asyncio.Task[None]]] = {}

    def follow(self, info: EngineInfo, engine: int) -> None:
        """The engine of this number takes requests, perhaps in place of another one."""
        source, known = info.kv_events, self._tasks.get(engine)
        if known is not None and known[0] == source and not known[1].done():
            # The subscription notices by itself that another engine publishes there.
            return
        if known is not None:
            known[1].cancel()
            del self._tasks[engine]
        if self._prefixes is None or source is None:
            return
        host = _HERE if self._local is None or engine < self._local else None
        subscription = Subscription(source, host, self._prefixes.follow(engine))
        self._tasks[engine] = source, asyncio.create_task(subscription.run())

    def resize(self, size: int) -> None:
        """There are no engines from this number on any more."""
        for engine in [number for number in self._tasks if number >= size]:
            self._tasks.pop(engine)[1].cancel()

    async def close(self) -> None:
        """End all tasks."""
        tasks = [task for _, task in self._tasks.values()]
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
