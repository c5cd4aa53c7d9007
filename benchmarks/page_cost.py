"""What the web page costs a busy server: tokens a second under many streams, with the live view open and closed.

    scripts/bench page_cost --streams 256 --rounds 6 --seconds 10

Starts a server of the demo model and keeps so many streams running. In turns, somebody reads the live view's events or
nobody does. Prints, for each, tokens a second by the server's own counter, and the processor time of its processes for
each token, which other load of the machine changes less. The browser is left out: it runs on the reader's machine.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from benchmarks.shared.running_server import RunningServer

BODY = {"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True, "stream": True}
COUNTER = ":generation_tokens_total{"


async def stream(client: httpx.AsyncClient) -> None:
    """One stream after the other."""
    while True:
        async with client.stream("POST", "/v1/completions", json=BODY) as response:
            async for _ in response.aiter_raw():
                pass


async def look(client: httpx.AsyncClient) -> None:
    """Read the events of the live view."""
    async with client.stream("GET", "/ui/events") as response:
        async for _ in response.aiter_raw():
            pass


async def count(client: httpx.AsyncClient) -> float:
    """Tokens that the server has generated so far."""
    text = (await client.get("/metrics")).text
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if COUNTER in line)


async def measure(client: httpx.AsyncClient, server: RunningServer, seconds: float) -> tuple[float, float]:
    """Tokens a second, and microseconds of processor time for each token."""
    first, cpu, began = await count(client), server.cpu_seconds(), time.perf_counter()
    await asyncio.sleep(seconds)
    tokens, spent = await count(client) - first, time.perf_counter() - began
    used = sum(server.cpu_seconds().values()) - sum(cpu.values())
    return tokens / spent, 1e6 * used / tokens


async def run(args: argparse.Namespace, server: RunningServer) -> None:
    """Measure in turns, and print."""
    limits = httpx.Limits(max_connections=None)
    found: dict[str, list[tuple[float, float]]] = {"closed": [], "open": []}
    async with httpx.AsyncClient(base_url=server.base_url, timeout=None, limits=limits) as client:
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(stream(client)) for _ in range(args.streams)]
        await asyncio.sleep(args.seconds / 2)
        for number in range(2 * args.rounds):
            # Open, closed, closed, open: what drifts meanwhile is shared.
            name = "open" if number % 4 in (0, 3) else "closed"
            looker = asyncio.create_task(look(client)) if name == "open" else None
            await asyncio.sleep(1)
            found[name].append(await measure(client, server, args.seconds))
            print(f"{name:>6}: {found[name][-1][0]:8.0f} tokens/s, {found[name][-1][1]:6.1f} us of processor a token")
            if looker is not None:
                looker.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for index, what in enumerate(("tokens/s", "processor time a token")):
        medians = {name: statistics.median(each[index] for each in values) for name, values in found.items()}
        print(f"{what}: open to closed {medians['open'] / medians['closed'] - 1:+.1%} (medians)")


def main() -> None:
    """Read the flags, and run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=6, help="measurements of each")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a measurement")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        flags = ("demo", "--max-num-seqs", "256", "--max-model-len", "512")
        with RunningServer(flags, log=Path(folder) / "log") as server:
            asyncio.run(run(args, server))


if __name__ == "__main__":
    main()
