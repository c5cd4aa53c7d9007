"""What the web page costs a busy server: its work for each token, with the live view open and closed in turns.

    scripts/bench page_cost --streams 256 --pairs 24 --seconds 4

Starts a server of the demo model and keeps so many streams running. In turns, somebody reads the live view's events or
nobody does; each turn and the one after it make a pair. Prints the change from closed to open, as the median of the
pairs with its 95 % confidence interval: microseconds of processor time for each token, of the API server, of the engine
and of both, and tokens a second. Processor time is the figure to trust: other load of the machine changes it less. Load
and reader run in this process, so their work is not in it; the browser is left out: it runs on the reader's machine.

A machine with other load hides changes below some percent. `--interval 0.02` has events 25 times as often as the page
has them, and `--streams 64` shortens the steps between two events, so that what an event costs stands out.
"""

import argparse
import asyncio
import json
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
import psutil

from benchmarks.shared.running_server import RunningServer
from jaxllm.engine.step_log import WATCHED_SECONDS
from jaxllm.serving.cli import main as cli
from jaxllm.serving.ui import live

COUNTER = ":generation_tokens_total{"
TOKENS = 400
_HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
_LAST = b"0\r\n\r\n"
"""The end of an answer in chunks."""


class Stream(asyncio.Protocol):
    """One request after the other over a connection. Answers are counted and not looked at."""

    def __init__(self, first_tokens: int) -> None:
        """The first answer has so many tokens: streams that begin together shall not all end together."""
        self._tokens, self._tail = first_tokens, b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._ask()

    def data_received(self, data: bytes) -> None:
        """Ask again at the end of an answer."""
        self._tail = (self._tail + data)[-len(_LAST) :]
        if self._tail == _LAST:
            self._tokens = TOKENS
            self._ask()

    def _ask(self) -> None:
        assert self._transport is not None
        body = {"prompt": "Once upon a time", "max_tokens": self._tokens, "ignore_eos": True, "stream": True}
        content = json.dumps(body).encode()
        head = (
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        )
        self._transport.write(head % len(content) + content)


class Reader(asyncio.Protocol):
    """Reads the events of the live view, and counts them."""

    num_events = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"GET /ui/events HTTP/1.1\r\nHost: x\r\n\r\n")

    def data_received(self, data: bytes) -> None:
        """Count what has begun."""
        self.num_events += data.count(b"data: ")


class Meter:
    """Reads what a server has used and generated so far."""

    def __init__(self, client: httpx.AsyncClient, server: RunningServer) -> None:
        self._client, self._server = client, server

    async def measure(self, seconds: float) -> dict[str, float]:
        """Microseconds of processor time for each token by process, and tokens a second, of so many seconds."""
        first, before, began = await self._count(), self._used(), time.perf_counter()
        await asyncio.sleep(seconds)
        tokens, after, spent = await self._count() - first, self._used(), time.perf_counter() - began
        used = {name: 1e6 * (after[name] - before[name]) / tokens for name in after}
        return {**used, "both": sum(used.values()), "tokens/s": tokens / spent}

    def _used(self) -> dict[str, float]:
        """Seconds of processor time so far; the kernel counts nanoseconds by thread, and only ticks by process."""
        server = psutil.Process(self._server.process.pid)
        engine = server.children(recursive=True)
        return {"server": _thread_seconds([server]), "engine": _thread_seconds(engine)}

    async def _count(self) -> float:
        text = (await self._client.get("/metrics")).text
        return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if COUNTER in line)


def _thread_seconds(processes: Sequence[psutil.Process]) -> float:
    """Of processes, whose threads do not end meanwhile. Linux alone has the figure."""
    files = (file for each in processes for file in Path(f"/proc/{each.pid}/task").glob("*/schedstat"))
    return sum(int(file.read_text().split()[0]) for file in files) / 1e9


async def run(args: argparse.Namespace, server: RunningServer) -> None:
    """Measure in turns, and print."""
    loop, at = asyncio.get_running_loop(), ("127.0.0.1", server.port)
    drawn = random.Random(0)
    streams = [await loop.create_connection(lambda: Stream(drawn.randint(1, TOKENS)), *at) for _ in range(args.streams)]
    turns: list[dict[str, dict[str, float]]] = []
    events: list[float] = []
    async with httpx.AsyncClient(base_url=server.base_url, timeout=None) as client:
        meter = Meter(client, server)
        await asyncio.sleep(args.seconds)
        for number in range(args.pairs):
            pair: dict[str, dict[str, float]] = {}
            # Open, closed, closed, open: what drifts meanwhile is shared.
            for name in ("open", "closed") if number % 2 == 0 else ("closed", "open"):
                readers = [await loop.create_connection(Reader, *at) for _ in range(args.readers * (name == "open"))]
                # So long the engine records steps for a reader who has left.
                await asyncio.sleep(WATCHED_SECONDS + 0.5)
                read = sum(reader.num_events for _, reader in readers)
                pair[name] = await meter.measure(args.seconds)
                if readers:
                    events.append(
                        (sum(reader.num_events for _, reader in readers) - read) / args.seconds / len(readers)
                    )
                for transport, _ in readers:
                    transport.close()
            turns.append(pair)
            print(f"{number + 1:3}", *(f"{name}: {_line(pair[name])}" for name in ("open", "closed")), sep="  ")
    for transport, _ in streams:
        transport.close()
    report(turns, events)


def report(turns: Sequence[dict[str, dict[str, float]]], events: Sequence[float]) -> None:
    """Print what the turns say; `events` of each pair are those of a second."""
    print(f"{statistics.median(events):.1f} events a second; medians, with their 95 % intervals:")
    for what in turns[0]["open"]:
        closed = statistics.median(pair["closed"][what] for pair in turns)
        middle, low, high = interval([100 * (pair["open"][what] / pair["closed"][what] - 1) for pair in turns])
        line = f"{what:>9}: {closed:8.1f} closed; open {middle:+.1f} % ({low:+.1f} to {high:+.1f})"
        if what != "tokens/s":
            pairs = zip(turns, events, strict=True)
            middle, low, high = interval(
                [
                    (pair["open"][what] - pair["closed"][what]) * pair["open"]["tokens/s"] / rate / 1000
                    for pair, rate in pairs
                ]
            )
            line += f"; an event {middle:.2f} ms ({low:.2f} to {high:.2f})"
        print(line)


def _line(figures: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.1f}" for name, value in figures.items())


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The median, and the bounds of its 95 % confidence interval, which assumes no distribution.

    The median is outside of the k-th smallest and largest of n with the probability that a fair coin falls on one side
    less than k times in n throws, twice.
    """
    ordered, tail, k = sorted(values), 0.0, 0
    while (tail := tail + math.comb(len(ordered), k) / 2 ** len(ordered)) <= 0.025:
        k += 1
    return statistics.median(ordered), ordered[max(k - 1, 0)], ordered[-max(k, 1)]


def main() -> None:
    """Read the flags, and run it."""
    if sys.argv[1:2] == ["serve"]:
        live.INTERVAL = float(sys.argv[2])
        sys.exit(cli.main(["serve", *sys.argv[3:]]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--readers", type=int, default=1, help="pages that are open at once")
    parser.add_argument("--pairs", type=int, default=24, help="turns of each kind")
    parser.add_argument("--seconds", type=float, default=4.0, help="of a turn")
    parser.add_argument("--interval", type=float, default=live.INTERVAL, help="seconds between two events")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        flags = ("demo", "--max-num-seqs", "256", "--max-model-len", "512")
        command = ("benchmarks.page_cost", "serve", str(args.interval))
        with RunningServer(flags, log=Path(folder) / "log", command=command) as server:
            asyncio.run(run(args, server))


if __name__ == "__main__":
    main()
