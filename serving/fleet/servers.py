"""The servers behind a router: where they are, whether they are healthy, what they do and what they have cached."""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Self
from urllib.parse import urlsplit

import aiohttp
import msgspec

from jaxllm.config.engine_info import KVEventSource
from jaxllm.serving.affinity.prefixes import KnownPrefixes
from jaxllm.serving.affinity.subscription import Subscription

logger = logging.getLogger(__name__)

Role = Literal["prefill", "decode"]
_HEALTH_SECONDS = 5.0
"""A server that takes longer to say that it is healthy is not."""
_REFRESH = 16
"""Health checks after which a server is asked again what it serves and where its engines publish events."""
_IDLE_SECONDS = 2.0
"""Connections are kept for less time than servers keep them, which is 5 s: none is closed as a request comes."""
MOST_RANKS = 1024
"""Engines of a server at most, for numbers of engines of all servers."""
UNREACHABLE = (aiohttp.ClientConnectionError, TimeoutError)
"""Errors of a request that say that nobody answers."""


class FleetServer:
    """One server. Belongs to an event loop.

    `in_flight` are its requests; `queued_tokens` the prompt tokens that it was asked to compute and has not.
    """

    def __init__(self, number: int, role: Role, url: str, name: str = "") -> None:
        """`number` tells the servers of a router apart; `url` is `http://HOST:PORT` or `unix:PATH`."""
        self.number, self.role, self.url = number, role, url.rstrip("/")
        self.name = name or f"{role}-{number}"
        path = url.removeprefix("unix:")
        self._is_socket = path != url
        self._base = "http://localhost" if self._is_socket else self.url
        self.host = "127.0.0.1" if self._is_socket else urlsplit(url).hostname or "127.0.0.1"
        kept: dict[str, Any] = {"limit": 0, "keepalive_timeout": _IDLE_SECONDS}
        connector: aiohttp.BaseConnector = (
            aiohttp.UnixConnector(path, **kept) if self._is_socket else aiohttp.TCPConnector(**kept)
        )
        # Nothing is decoded here that only passes through; how long an answer takes is for others to say.
        self.session = aiohttp.ClientSession(
            connector=connector, auto_decompress=False, timeout=aiohttp.ClientTimeout(total=None, sock_connect=5.0),
            cookie_jar=aiohttp.DummyCookieJar(),
        )  # fmt: skip
        self.problem = "it has not been asked yet"
        """Why it gets no requests; empty when it is healthy."""
        self.in_flight = 0
        self.queued_tokens = 0
        self.adapters: frozenset[str] = frozenset()
        """Names of the adapters that it serves."""
        self.model = ""
        self.max_model_len = 0
        self.is_known = False
        """Whether it has been asked what it serves since it was healthy."""
        self._sources: dict[int, tuple[KVEventSource, asyncio.Task[None]]] = {}

    @property
    def is_up(self) -> bool:
        """Whether it may get requests."""
        return not self.problem

    @property
    def engines(self) -> list[int]:
        """Numbers of its engines in `KnownPrefixes`: that of a server without events is the first."""
        return [self.number * MOST_RANKS + rank for rank in self._sources or (0,)]

    def address(self, path: str) -> str:
        """The URL of a path, with its query."""
        return self._base + path

    def fail(self, problem: str) -> None:
        """It gets no requests until it has answered the next question."""
        if self.is_up:
            logger.warning("%s (%s) gets no requests: %s", self.name, self.url, problem)
        self.problem, self.is_known = problem, False

    async def check(self) -> None:
        """Ask whether it is healthy."""
        try:
            async with asyncio.timeout(_HEALTH_SECONDS), self.session.get(self.address("/health")) as answer:
                problem = "" if answer.status == 200 else f"/health has status {answer.status}"
        except UNREACHABLE as error:
            problem = str(error) or "it does not answer"
        except aiohttp.ClientError as error:
            problem = str(error)
        if problem:
            self.fail(problem)
        elif not self.is_up:
            logger.info("%s (%s) is up", self.name, self.url)
            self.problem = ""

    async def learn(self, prefixes: KnownPrefixes, headers: Mapping[str, str]) -> None:
        """Ask what it serves, and follow the events of its engines."""
        self.is_known = True
        models = await self._ask("/v1/models", headers)
        found = models.get("data") if isinstance(models, dict) else None
        listed = [each for each in found or () if isinstance(each, dict)]
        self.adapters = frozenset(str(each.get("id")) for each in listed if each.get("parent"))
        own = next((each for each in listed if not each.get("parent")), {})
        self.model, self.max_model_len = str(own.get("id", "")), int(own.get("max_model_len") or 0)
        self._follow(_sources(await self._ask("/kv_event_sources", headers)), prefixes)

    async def _ask(self, path: str, headers: Mapping[str, str]) -> Any:
        """The JSON that it answers, None where it has none."""
        try:
            async with asyncio.timeout(_HEALTH_SECONDS), self.session.get(self.address(path), headers=headers) as found:
                return msgspec.json.decode(await found.read()) if found.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError):
            return None

    def _follow(self, sources: Iterable[KVEventSource], prefixes: KnownPrefixes) -> None:
        wanted = {source.data_parallel_rank: source for source in sources}
        for rank, (source, task) in list(self._sources.items()):
            if wanted.get(rank) != source or task.done():
                task.cancel()
                del self._sources[rank]
        for rank, source in wanted.items():
            if rank not in self._sources:
                cached = prefixes.follow(self.number * MOST_RANKS + rank)
                self._sources[rank] = source, asyncio.create_task(Subscription(source, self.host, cached).run())

    async def close(self) -> None:
        """End its connections."""
        tasks = [task for _, task in self._sources.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.session.close()


def _sources(answer: Any) -> list[KVEventSource]:
    """What `/kv_event_sources` says; what cannot be read is left out."""
    found = []
    for each in answer.values() if isinstance(answer, dict) else ():
        try:
            source = msgspec.convert({"snapshot_endpoint": None, "replay_endpoint": None, **each}, KVEventSource)
        except (msgspec.ValidationError, TypeError):
            logger.warning("a source of events cannot be read: %r", each)
            continue
        if 0 <= source.data_parallel_rank < MOST_RANKS:
            found.append(source)
    return found


class Servers:
    """All servers of a router, which are asked again and again how they are. An asynchronous context manager."""

    def __init__(self, servers: Iterable[FleetServer], interval: float, api_key: str | None) -> None:
        """Every `interval` seconds; `api_key` is for what servers tell only those who have a key."""
        self.all = list(servers)
        self.prefixes = KnownPrefixes()
        self._interval = interval
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._watch: list[asyncio.Task[None]] = []

    def of(self, role: Role) -> list[FleetServer]:
        """The servers of this role that are up."""
        return [server for server in self.all if server.role == role and server.is_up]

    @property
    def disaggregated(self) -> bool:
        """Whether some servers only compute prompts."""
        return any(server.role == "prefill" for server in self.all)

    async def __aenter__(self) -> Self:
        """Ask every server once."""
        await asyncio.gather(*map(self.look, self.all))
        self._watch = [asyncio.create_task(self._keep_looking(server)) for server in self.all]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._watch:
            task.cancel()
        await asyncio.gather(*self._watch, return_exceptions=True)
        await asyncio.gather(*(server.close() for server in self.all))

    async def look(self, server: FleetServer, *, again: bool = False) -> None:
        """Ask a server whether it is healthy, and what it serves if that is not known, or `again`."""
        await server.check()
        if not server.is_known:
            for engine in server.engines:
                self.prefixes.forget(engine)
        if server.is_up and (again or not server.is_known):
            await server.learn(self.prefixes, self._headers)

    async def _keep_looking(self, server: FleetServer) -> None:
        count = 0
        while True:
            await asyncio.sleep(self._interval)
            count += 1
            await self.look(server, again=count % _REFRESH == 0)
