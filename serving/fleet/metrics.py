"""What a router counts, and the metrics of all servers of a fleet on one page."""

import asyncio
from collections.abc import Iterable
from typing import Final

import aiohttp
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from jaxllm.serving.fleet.servers import FleetServer, Servers

PLACES: Final = ("prefill", "short", "cached", "unsupported", "unavailable", "failed")
"""Where a prompt is computed: by a prefill server, or where it is decoded, and why there."""
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class RouterMetrics:
    """Metrics of a router, each with a registry of its own."""

    def __init__(self, prefix: str) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            f"{prefix}:router_requests", "Answers of servers, by status; 0: there was none.", ["server", "status"],
            registry=self._registry,
        )  # fmt: skip
        self.prompts = Counter(
            f"{prefix}:router_prompts",
            "Generation requests, by where their prompts are computed: by a prefill server, or where they are decoded, "
            "because the prompt is short, cached, unsupported, or no prefill server was available or it failed.",
            ["computed"], registry=self._registry,
        )  # fmt: skip
        self.retries = Counter(
            f"{prefix}:router_retries", "Requests sent to another server because this one failed or was overloaded.",
            ["server"], registry=self._registry,
        )  # fmt: skip
        self.aborted = Counter(
            f"{prefix}:router_aborted", "Requests whose client left before the end.", registry=self._registry
        )
        self.broken = Counter(
            f"{prefix}:router_broken_streams", "Streams that a server ended in the middle.", ["server"],
            registry=self._registry,
        )  # fmt: skip
        self.prefill_seconds = Histogram(
            f"{prefix}:router_prefill_seconds", "Time that prefill servers take for a prompt, in seconds.",
            buckets=_SECONDS, registry=self._registry,
        )  # fmt: skip
        self._up = Gauge(
            f"{prefix}:router_server_up", "1 for servers that get requests, else 0.", ["server", "role"],
            registry=self._registry,
        )  # fmt: skip
        self._in_flight = Gauge(
            f"{prefix}:router_in_flight", "Requests that each server has from this router.", ["server", "role"],
            registry=self._registry,
        )  # fmt: skip
        self._cached = Gauge(
            f"{prefix}:router_cached_blocks", "Blocks that each server has cached, as its events say.",
            ["server", "role"], registry=self._registry,
        )  # fmt: skip
        for place in PLACES:
            self.prompts.labels(place)

    def page(self, servers: Servers) -> bytes:
        """All of them, as Prometheus reads them."""
        for server in servers.all:
            labels = (server.name, server.role)
            self._up.labels(*labels).set(server.is_up)
            self._in_flight.labels(*labels).set(server.in_flight)
            blocks = [servers.prefixes.num_blocks(engine) for engine in server.engines]
            self._cached.labels(*labels).set(sum(filter(None, blocks)))
        return generate_latest(self._registry)


async def fleet_page(servers: Iterable[FleetServer]) -> bytes:
    """The metrics of every server that answers, with its name as the label `server`."""
    asked = [server for server in servers if server.is_up]
    pages = await asyncio.gather(*map(_read, asked))
    families: dict[str, Metric] = {}
    for server, page in zip(asked, pages, strict=True):
        for family in text_string_to_metric_families(page):
            whole = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            whole.samples += [
                sample._replace(labels={**sample.labels, "server": server.name}) for sample in family.samples
            ]
    return generate_latest(_Collected(families.values()))


class _Collected(CollectorRegistry):
    """Families that were read elsewhere."""

    def __init__(self, families: Iterable[Metric]) -> None:
        super().__init__()
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """The families."""
        return self._families


async def _read(server: FleetServer) -> str:
    try:
        async with asyncio.timeout(5.0), server.session.get(server.address("/metrics")) as answer:
            return await answer.text() if answer.status == 200 else ""
    except (aiohttp.ClientError, TimeoutError):
        return ""
