"""One server takes over from another under load, again and again: no connection is refused, no answer is cut."""

import argparse
import asyncio
import random
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from benchmarks.shared.running_server import RunningServer
from scripts.chaos_load import COMPLETIONS, Client, Tally, ask_until

_PATIENCE = ("--shutdown-timeout", "600")
"""What runs may take its time, as it shares the processors with a server that starts."""
_END_SECONDS = 900.0
_KNOCKING = 4
"""Clients that only make connections, one after another."""
_PAUSE = 0.02
_SHORT = {"prompt": "The cat", "max_tokens": 3, "temperature": 0}


@dataclass
class Connections:
    """What became of connections that were made for one short request each. Times in seconds."""

    answers: Counter[str] = field(default_factory=Counter)
    """Texts (there should be just one) and errors."""
    longest: float = 0.0


def take_over(flags: Sequence[str], given: argparse.Namespace) -> int:
    """Have `given.attacks` servers follow each other; the exit code is 1 if any client noticed."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_run(Path(folder), (*flags, *_PATIENCE), given))


async def _run(folder: Path, flags: Sequence[str], given: argparse.Namespace) -> int:
    tally, knocks, over = Tally(), Connections(), asyncio.Event()
    server = RunningServer(flags, log=folder / "0")
    try:
        await asyncio.to_thread(server.__enter__)
        calm = Client(server.base_url)
        wanted = await calm.answers(tally)
        tally.gaps.clear()
        clients = [Client(server.base_url) for _ in range(given.streams)]
        load = [ask_until(over, client, wanted, tally, set()) for client in clients]
        load += [_knock(server.base_url, over, knocks) for _ in range(_KNOCKING)]
        asking = [asyncio.ensure_future(each) for each in load]
        draw = random.Random(given.seed)
        for number in range(1, (given.attacks or 1) + 1):
            await asyncio.sleep(draw.expovariate(1 / given.every))
            server = await _follow(server, flags, folder / str(number), tally)
        await asyncio.sleep(given.every)
        over.set()
        await asyncio.gather(*asking)
        await asyncio.gather(*(client.close() for client in (calm, *clients)))
    finally:
        await asyncio.to_thread(server.__exit__, None, None, None)
    gap = max((until - since for since, until in tally.gaps), default=0.0)
    print(
        f"{tally.attacks.total()} servers took over: {tally.answers.total()} answers {dict(tally.answers)}, "
        f"{len(tally.wrong)} wrong, {len(tally.errors)} errors, {tally.turned_away} told to come back later, longest "
        f"gap in a stream {gap:.2f} s; {knocks.answers.total()} connections for a short request: "
        f"{dict(knocks.answers)}, longest {knocks.longest:.2f} s"
    )
    print(*(each[:2000] for each in (tally.wrong + tally.errors)[:10]), sep="\n")
    return 1 if tally.wrong or tally.errors or tally.turned_away or len(knocks.answers) != 1 else 0


async def _follow(old: RunningServer, flags: Sequence[str], log: Path, tally: Tally) -> RunningServer:
    """The server that has taken over from an old one, which has ended well."""
    began = time.monotonic()
    new = RunningServer((*flags, "--takeover"), log=log, port=old.port)
    try:
        # It takes longer than anything that runs: it loads a model, and what runs was there before.
        code = await asyncio.to_thread(old.process.wait, _END_SECONDS)
    except BaseException:
        new.process.kill()
        raise
    if code != 0 or "Traceback" in log.with_name(str(int(log.name) - 1)).read_text(encoding="utf-8"):
        tally.errors.append(f"a server that was followed ended with code {code}")
    tally.attacks["takeover"] += 1
    print(f"{tally.attacks.total()}: the old one has gone after {time.monotonic() - began:.0f} s", flush=True)
    return new


async def _knock(url: str, over: asyncio.Event, found: Connections) -> None:
    """Make a connection, ask, and close it, again and again."""
    while not over.is_set():
        began = time.monotonic()
        try:
            async with httpx.AsyncClient(base_url=url, timeout=None) as client:
                response = await client.post(COMPLETIONS, json=_SHORT)
            found.answers[response.json()["choices"][0]["text"] if response.is_success else response.text] += 1
        except httpx.HTTPError as error:
            found.answers[f"{error!r}"] += 1
        found.longest = max(found.longest, time.monotonic() - began)
        await asyncio.sleep(_PAUSE)
