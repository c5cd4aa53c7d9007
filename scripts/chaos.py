"""Kills and stops processes of a server under load, and compares every answer with that of an undisturbed run."""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import httpx
import psutil

from benchmarks.shared.running_server import RunningServer
from scripts.chaos_attacks import (
    Attacker,
    Vitals,
    alive_in,
    command_of,
    growth,
    kill_everything,
    named_memory,
    slopes,
    vitals,
)
from scripts.chaos_gaps import told
from scripts.chaos_load import KINDS, Answers, Client, Tally, ask_until
from scripts.chaos_takeovers import take_over

FLAGS = (
    *("demo", "--disable-log-stats", "--max-restarts", "100000", "--step-timeout", "10", "--optimization-level", "0"),
    *("--max-model-len", "512", "--max-num-seqs", "32", "--max-num-batched-tokens", "64"),
    *("--num-gpu-blocks-override", "128", "--max-request-crashes", "1000"),
)
"""Few programs, so that a start is quick, and so few pages that requests are preempted as well. None is a suspect."""
_END_SECONDS = 120.0
"""Within which all processes of a server must be gone that was killed: each looks once it has imported its modules."""
_SAMPLE_SECONDS = 5.0
_SAMPLES_AT_REST = 3
_COURSE_SECONDS = 2.0


class Run:
    """Asks for everything undisturbed, then again and again while processes are attacked."""

    def __init__(self, server: RunningServer, given: argparse.Namespace) -> None:
        self._server, self._given = server, given
        self._draw = random.Random(given.seed)
        self.tally = Tally()
        self._attacker = Attacker(server.process.pid, given.victim, self._draw, given.stops)
        self._over = asyncio.Event()
        self.calm: list[tuple[float, float]] = []
        """Gaps before the first attack."""
        self.course: list[tuple[float, dict[int, Vitals]]] = []
        """What processes took during the attacks, with seconds."""
        self.rest: list[list[dict[int, Vitals]]] = []
        """What processes took when nothing ran, before and after."""

    async def __call__(self) -> None:
        """Run until the time is over, or until there were as many attacks as asked for."""
        calm = Client(self._server.base_url)
        wanted = await calm.answers(self.tally)
        # What is only made with the first load is there before it is counted.
        await self._until(0, wanted, lambda: asyncio.sleep(self._given.warm_up))
        await self._sample_at_rest()
        self.calm, self.tally.gaps = self.tally.gaps, []
        watched = asyncio.ensure_future(self._sample())
        await self._until(self._given.seconds, wanted, self._attack)
        watched.cancel()
        await self._sample_at_rest()
        await calm.close()

    async def _until(self, seconds: float, wanted: Answers, work: Callable[[], Awaitable[None]]) -> None:
        """Ask until some work is done, or the time is over."""
        self._over.clear()
        clients = [Client(self._server.base_url) for _ in range(self._given.streams)]
        broken = self._attacker.broken
        workers = [
            asyncio.ensure_future(ask_until(self._over, client, wanted, self.tally, broken)) for client in clients
        ]
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds or None):
                await work()
        self._over.set()
        await asyncio.gather(*workers)
        await asyncio.gather(*(client.close() for client in clients))

    async def _attack(self) -> None:
        attacks = self.tally.attacks
        while not self._given.attacks or attacks.total() < self._given.attacks:
            if self._draw.random() >= self._given.starts:
                await self._until_ready()
            await asyncio.sleep(self._draw.expovariate(1 / self._given.every))
            name = await asyncio.to_thread(self._attacker.strike)
            if name is not None:
                attacks[name] += 1

    async def _sample(self) -> None:
        """Look at the processes again and again, until cancelled."""
        while True:
            self.course.append((time.monotonic(), await asyncio.to_thread(vitals, self._server.process.pid)))
            await asyncio.sleep(_COURSE_SECONDS)

    async def _until_ready(self) -> None:
        async with httpx.AsyncClient(base_url=self._server.base_url, timeout=60) as client:
            with suppress(httpx.HTTPError):  # The process that answers may be the one that ends.
                while (await client.get("/ready")).status_code != 200:  # noqa: ASYNC110
                    await asyncio.sleep(0.2)

    async def _sample_at_rest(self) -> None:
        await self._until_ready()
        self.rest.append([])
        for _ in range(_SAMPLES_AT_REST):
            await asyncio.sleep(_SAMPLE_SECONDS)
            self.rest[-1].append(await asyncio.to_thread(vitals, self._server.process.pid))


def attack_parts(given: argparse.Namespace) -> int:
    """Attack engines or API server processes of one server."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with RunningServer((*FLAGS, *_counts(given)), log=log) as server:
            run = Run(server, given)
            asyncio.run(run())
            metrics = httpx.get(f"{server.base_url}/metrics", timeout=60).text
        tally, text = run.tally, log.read_text(encoding="utf-8", errors="replace")
        if tally.errors or tally.wrong:
            sys.stderr.write(text[-4000:])
    resumed = sum(
        float(line.split()[-1]) for line in metrics.splitlines() if line.startswith("jaxllm:requests_resumed_total")
    )
    print(
        f"{tally.answers.total()} answers {dict(tally.answers)}, {len(tally.wrong)} wrong, {len(tally.errors)} errors, "
        f"{tally.cut} cut with their API server, {tally.turned_away} told to come back later; {dict(tally.attacks)}, "
        f"{resumed:.0f} requests resumed"
    )
    print(*told(run.calm, tally.gaps, text), *growth(*run.rest), *slopes(run.course), sep="\n")
    for kind, count in Counter(each.partition(": ")[2][:80] for each in tally.errors).most_common(10):
        print(f"{count} errors: {kind}")
    for each in (tally.wrong + tally.errors)[:10]:
        print(each[:2000])
    return 1 if tally.wrong or tally.errors else 0


def attack_everything(given: argparse.Namespace) -> int:
    """Kill all of a server, at any moment of its start or under load, again and again: nothing may be left."""
    draw, left = random.Random(given.seed), list[str]()
    for number in range(given.attacks or 1):
        with tempfile.TemporaryDirectory() as outer:
            scratch, log = Path(outer) / "scratch", Path(outer) / "log"
            scratch.mkdir()
            server = RunningServer((*FLAGS, *_counts(given)), log=log, environment={"TMPDIR": str(scratch)})
            starting = draw.random() < 0.5
            with suppress(RuntimeError):
                if not starting:
                    server.__enter__()
            asyncio.run(_load_for(server, given.streams * (not starting), draw.uniform(0, given.every)))
            memory = named_memory(server.process.pid)
            killed = kill_everything(server.process.pid, draw)
            server.process.wait(_END_SECONDS)
            deadline = time.monotonic() + _END_SECONDS
            while (alive := alive_in(scratch)) and time.monotonic() < deadline:
                time.sleep(0.1)
            files = [str(path.relative_to(scratch)) for path in scratch.rglob("*")]
            files += [str(path) for path in memory if path.exists()]
            named = [command_of(each) for each in alive]
            if alive or files:
                left.append(f"{'starting' if starting else 'under load'}, {killed} killed: {named} {files}")
                for each in alive:
                    with suppress(psutil.Error):
                        each.kill()
        print(f"{number + 1}: {'starting' if starting else 'under load'}, {killed} killed", flush=True)
    print(f"{given.attacks or 1} servers killed, {len(left)} left something")
    print(*left[:10], sep="\n")
    return 1 if left else 0


async def _load_for(server: RunningServer, streams: int, seconds: float) -> None:
    """Ask for some time, and leave all answers unread."""
    clients = [Client(server.base_url) for _ in range(streams)]
    kinds = [random.choice(list(KINDS)) for _ in clients]
    tally = Tally()
    asked = [
        asyncio.ensure_future(client.ask(kind, stream=True, tally=tally))
        for client, kind in zip(clients, kinds, strict=True)
    ]
    await asyncio.sleep(seconds)
    for each in asked:
        each.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    await asyncio.gather(*(client.close() for client in clients))


def _counts(given: argparse.Namespace) -> tuple[str, ...]:
    servers, engines = str(given.api_server_count), str(given.data_parallel_size)
    return "--api-server-count", servers, "--data-parallel-size", engines


def main() -> int:
    """Exit code 1 if any answer was wrong or an error, or if anything was left of a server that was killed."""
    parser = argparse.ArgumentParser(prog="scripts/chaos", description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="for how long, 0: without end (default: %(default)s)"
    )
    parser.add_argument(
        "--attacks", type=int, default=0, help="how many at most (default: as many as there is time for)"
    )
    parser.add_argument("--streams", type=int, default=16, help="requests at a time (default: %(default)s)")
    parser.add_argument("--every", type=float, default=5.0, help="mean seconds between two attacks")
    parser.add_argument("--stops", type=float, default=0.2, help="share of attacks that stop a process")
    parser.add_argument(
        "--starts", type=float, default=0.1, help="share of attacks that do not wait until an engine serves again"
    )
    parser.add_argument("--warm-up", type=float, default=5.0, help="seconds of load before processes are measured")
    parser.add_argument("--seed", type=int, default=0, help="of the attacks")
    victims = ("engine", "api-server", "everything", "nobody")
    parser.add_argument(
        "--victim", choices=victims, default="engine",
        help="what is attacked; nobody: one server takes over from another each time (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--api-server-count", type=int, default=1)
    parser.add_argument("--data-parallel-size", type=int, default=1)
    given = parser.parse_args()
    if given.victim == "nobody":
        return take_over((*FLAGS, *_counts(given)), given)
    return attack_everything(given) if given.victim == "everything" else attack_parts(given)


if __name__ == "__main__":
    sys.exit(main())
