"""How many tokens per second the server streams: many connections before an engine that computes nothing.

The engine process is a stand-in that speaks the engine's protocol and gives every request one token per step, at a
pace that is asked for. Tokens are counted by the server's own metric, events by the clients. What a token costs is
processor time of the API server processes, which depends less on what else the machine does than throughput does.
While the server keeps up, every token is an event of its own; beyond that they merge, which the last column shows.
"""

import argparse
import asyncio
import json
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import uvloop

from benchmarks.shared.running_server import RunningServer
from benchmarks.shared.stand_in_server import MODULE, STEP_MS

WARM_SECONDS = 2.0
GAPS_OF = 16
"""Of so many connections the times between events are kept."""


@dataclass(frozen=True)
class Load:
    """One measurement: `connections` streams, which each get a token every `step_ms`, for `seconds`."""

    connections: int
    tokens_per_s: float
    seconds: float
    chat: bool
    api_servers: int = 1
    engines: int = 1

    @property
    def step_ms(self) -> float:
        """Length of a step of the stand-in, in milliseconds."""
        return 1e3 * self.connections / self.tokens_per_s


class Client(asyncio.Protocol):
    """One connection: sends a request, and counts the events that come. Reading costs as little as may be."""

    def __init__(self, request: bytes, *, keep_gaps: bool) -> None:
        self.events = 0
        self.gaps: list[float] = []
        self.begun = asyncio.Event()
        self.ended = False
        self._request = request
        self._keep_gaps = keep_gaps
        self._begun = False
        self._last = 0.0

    def connection_made(self, transport: Any) -> None:
        """Ask."""
        self.transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Count."""
        # A chunk of the transfer ends after the empty line that ends an event: no event is cut in two here.
        self.events += data.count(b"\n\n\r\n")
        if self.events and not self._begun:
            self._begun = True
            self.begun.set()
        if self._keep_gaps:
            now = time.perf_counter()
            self.gaps.append(now - self._last)
            self._last = now

    def connection_lost(self, exc: Exception | None) -> None:
        """Remember that it is over, which it should not be before the end of the measurement."""
        self.ended = True

    def reset(self) -> None:
        """Count from here on."""
        self.events, self.gaps = 0, []


def request_bytes(load: Load) -> bytes:
    """An HTTP request for a stream that is longer than the measurement."""
    body: dict[str, Any] = {"stream": True, "ignore_eos": True, "max_tokens": 5_000_000}
    if load.chat:
        body["messages"] = [{"role": "user", "content": "Tell me a story of a girl and her dog."}]
    else:
        body["prompt"] = "Once upon a time there was a girl who had a dog."
    encoded = msgspec.json.encode(body)
    path = "/v1/chat/completions" if load.chat else "/v1/completions"
    head = f"POST {path} HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\nContent-Length: {len(encoded)}"
    return f"{head}\r\n\r\n".encode() + encoded


def measure(load: Load, scratch: Path) -> dict[str, float]:
    """Start a server, load it, and count."""
    flags = ["demo", "--max-queued-requests", "8192", "--shutdown-timeout", "0", "--disable-log-stats"]
    if load.api_servers > 1:
        flags += ["--api-server-count", str(load.api_servers)]
    if load.engines > 1:
        flags += ["--data-parallel-size", str(load.engines)]
    server = RunningServer(
        flags,
        log=scratch / "server.log",
        command=("benchmarks.shared.stand_in_server",),
        environment={STEP_MS: str(load.step_ms)},
    )
    with server, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(server, load))


async def _run(server: RunningServer, load: Load) -> dict[str, float]:
    loop, request = asyncio.get_running_loop(), request_bytes(load)
    clients = [Client(request, keep_gaps=index < GAPS_OF) for index in range(load.connections)]
    for client in clients:
        await loop.create_connection(lambda client=client: client, "127.0.0.1", server.port)  # type: ignore[misc]
    await asyncio.gather(*(client.begun.wait() for client in clients))
    await asyncio.sleep(WARM_SECONDS)
    own, cpu = psutil.Process(), _cpu_seconds(server)
    before = own.cpu_times()
    tokens, start = await _tokens(server), time.perf_counter()
    for client in clients:
        client.reset()
    await asyncio.sleep(load.seconds)
    events, elapsed = sum(client.events for client in clients), time.perf_counter() - start
    tokens = await _tokens(server) - tokens
    used = {name: seconds - cpu[name] for name, seconds in _cpu_seconds(server).items()}
    after = own.cpu_times()
    if any(client.ended for client in clients):
        raise RuntimeError("a stream ended early")
    gaps = np.array([gap for client in clients for gap in client.gaps[1:]]) * 1e3
    for client in clients:
        client.transport.abort()
    return {
        "tokens_per_s": tokens / elapsed,
        "events_per_s": events / elapsed,
        "api_us_per_token": used["api"] / tokens * 1e6,
        "api_us_per_event": used["api"] / events * 1e6,
        "system_us_per_event": used["system"] / events * 1e6,
        "api_cores": used["api"] / elapsed,
        "engine_cores": used["engine"] / elapsed,
        "client_cores": (after.user + after.system - before.user - before.system) / elapsed,
        "gap_p50_ms": float(np.percentile(gaps, 50)),
        "gap_p99_ms": float(np.percentile(gaps, 99)),
        "tokens_per_event": tokens / events,
    }


def _cpu_seconds(server: RunningServer) -> dict[str, float]:
    """Processor time of the API server's processes and of the stand-in; `system` is the first's share in the system."""
    used = {"api": 0.0, "engine": 0.0, "system": 0.0}
    top = psutil.Process(server.process.pid)
    for process in (top, *top.children(recursive=True)):
        times = process.cpu_times()
        is_engine = MODULE in process.cmdline()
        used["engine" if is_engine else "api"] += times.user + times.system
        used["system"] += 0.0 if is_engine else times.system
    return used


async def _tokens(server: RunningServer) -> float:
    """Tokens that came from the engine so far, as the server counts them."""

    def read() -> float:
        with urllib.request.urlopen(f"{server.base_url}/metrics", timeout=60) as response:
            lines = response.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("jaxllm:generation_tokens_total"))

    return await asyncio.to_thread(read)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--connections", type=int, nargs="+", default=[256, 1000], help="streams at once")
    parser.add_argument("--rates", type=float, nargs="+", default=[5e3, 20e3, 50e3], help="tokens per second to offer")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each measurement")
    parser.add_argument("--endpoint", choices=("chat", "completions"), default="chat", help="what is asked for")
    parser.add_argument("--api-server-count", type=int, nargs="+", default=[1], help="API server processes")
    parser.add_argument("--data-parallel-size", type=int, nargs="+", default=[1], help="engines of the server")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args(arguments)
    loads = [
        Load(connections, rate, given.seconds, given.endpoint == "chat", count, engines)
        for count in given.api_server_count
        for engines in given.data_parallel_size
        for connections in given.connections
        for rate in given.rates
    ]
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        for load in loads:
            got = {f"got_{key}": value for key, value in measure(load, Path(scratch)).items()}
            results.append({**asdict(load), **got})
            if not given.json:
                _print(results[-1], heading=len(results) == 1)
    if given.json:
        print(json.dumps(results, indent=1))


def _print(result: dict[str, Any], *, heading: bool) -> None:
    columns = {
        "servers": ("api_servers", "d"), "engines": ("engines", "d"), "streams": ("connections", "d"),
        "offered/s": ("tokens_per_s", ",.0f"),
        "tokens/s": ("got_tokens_per_s", ",.0f"), "events/s": ("got_events_per_s", ",.0f"),
        "us/token": ("got_api_us_per_token", ".1f"), "us/event": ("got_api_us_per_event", ".1f"),
        "in system": ("got_system_us_per_event", ".1f"),
        "api cores": ("got_api_cores", ".2f"), "engine": ("got_engine_cores", ".2f"),
        "client": ("got_client_cores", ".2f"), "gap p50": ("got_gap_p50_ms", ".1f"),
        "gap p99": ("got_gap_p99_ms", ".1f"), "tokens/event": ("got_tokens_per_event", ".2f"),
    }  # fmt: skip
    if heading:
        print("".join(f"{name:>13}" for name in columns))
    print("".join(f"{format(result[key], kind):>13}" for key, kind in columns.values()), flush=True)


if __name__ == "__main__":
    main()
