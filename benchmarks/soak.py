"""A server under a mixture of everything for minutes: how its memory grows, and what goes wrong.

Streams, streams that are left, grammars, calls, beams, stored responses, bad input: a few workers ask at random, with
pauses. The memory of each process is sampled; the slopes are of what follows the warm-up, in which caches fill, with
intervals of 95 %. The KV cache is small, so that all of it is in use before that. With --recreate, instead: the memory
of one process in which `LLM` is made and deleted again and again.
"""

import argparse
import asyncio
import json
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.shared.memory_growth import MemorySampler, MemorySeries, slope
from benchmarks.shared.recreation import growth_per_recreation, recreate
from benchmarks.shared.running_server import RunningServer
from benchmarks.shared.soak_load import Tally, run_load

FLAGS = ("demo", "--disable-log-stats", "--num-gpu-blocks-override", "1024")
"""Of the server. On CPU the KV cache takes memory when it is first written, which must not look like growth."""

IDLE_SECONDS = 60.0
"""After the load, the server must come to rest within this time."""


async def _load_and_sample(
    server: RunningServer, sampler: MemorySampler, given: argparse.Namespace
) -> tuple[Tally, float]:
    """The outcome of the load, and for how many seconds it lasted."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    load = asyncio.ensure_future(
        run_load(
            server.base_url,
            server.port,
            workers=given.workers,
            pause=given.pause,
            seed=given.seed,
            until=began + given.minutes * 60,
        )
    )
    while not load.done():
        await asyncio.to_thread(sampler.sample)
        await asyncio.wait([load], timeout=given.sample_seconds)
    return load.result(), loop.time() - began


def _rests(server: RunningServer) -> bool:
    """Whether the server is healthy and soon has nothing to do."""
    deadline = time.monotonic() + IDLE_SECONDS
    with httpx.Client(base_url=server.base_url, timeout=10) as http:
        while time.monotonic() < deadline:
            lines = http.get("/metrics").text.splitlines()
            names = ("jaxllm:num_requests_running", "jaxllm:num_requests_waiting{")
            if not any(float(line.split()[-1]) for line in lines if line.startswith(names)):
                return http.get("/health").status_code == 200
            time.sleep(0.2)
    return False


def _growth(series: MemorySeries, warm_up: float) -> dict[str, Any]:
    """Memory of a process at the end of the warm-up and at the end, and its slopes between."""
    seconds = np.array(series.seconds)
    warm = seconds >= warm_up
    found: dict[str, Any] = {"process": series.name, "samples": int(warm.sum())}
    for kind in ("rss", "uss"):
        values = np.array(getattr(series, kind))[warm]
        found[kind] = {"start": float(values[0]), "end": float(values[-1]), "peak": float(values.max())}
        found[kind] |= asdict(slope(seconds[warm], values))
    return found


def soak(given: argparse.Namespace) -> dict[str, Any]:
    """Start a server, load it, and report."""
    with tempfile.TemporaryDirectory() as scratch:
        server = RunningServer([*FLAGS, *given.server_flags], log=Path(scratch) / "server.log")
        with server:
            sampler = MemorySampler(server.process.pid, "server")
            tally, seconds = asyncio.run(_load_and_sample(server, sampler, given))
            rests = _rests(server)
            server.process.send_signal(signal.SIGTERM)
            exit_code = server.process.wait(60)
        log = (Path(scratch) / "server.log").read_text(errors="replace")
    warm_up = given.warm_up * 60
    return {
        "minutes": seconds / 60,
        "requests_per_s": (tally.done.total() + tally.failed.total()) / seconds,
        "done": dict(sorted(tally.done.items())),
        "failed": dict(tally.failed.most_common()),
        "memory": [_growth(series, warm_up) for series in sampler.lasting(warm_up)],
        "processes_seen": sampler.num_processes,
        "rests_at_the_end": rests,
        "exit_code": exit_code,
        "errors_in_log": [line for line in log.splitlines() if " ERROR " in line or line.startswith("Traceback")],
    }


def show(report: dict[str, Any]) -> None:
    """Print a report for people."""
    done, failed = sum(report["done"].values()), sum(report["failed"].values())
    print(
        f"{report['minutes']:.1f} minutes, {done + failed} requests ({report['requests_per_s']:.1f}/s), {failed} failed"
    )
    print("  " + ", ".join(f"{name} {count}" for name, count in report["done"].items()))
    for what, count in report["failed"].items():
        print(f"  FAILED {count} x {what}")
    print(f"\n{'MiB':40}{'start':>9}{'end':>9}{'peak':>9}{'per hour':>10}   95 %")
    for each in report["memory"]:
        for kind in ("rss", "uss"):
            found = each[kind]
            columns = "".join(f"{found[name]:9.1f}" for name in ("start", "end", "peak"))
            interval = f"{found['low']:+.1f} to {found['high']:+.1f}"
            print(f"{each['process'] + ', ' + kind.upper():40}{columns}{found['value']:+10.1f}   {interval}")
    print(f"\nprocesses seen: {report['processes_seen']}; at rest at the end: {report['rests_at_the_end']}; ", end="")
    print(f"exit code {report['exit_code']}; errors in the log: {len(report['errors_in_log'])}")
    for line in report["errors_in_log"][:10]:
        print(f"  {line}")


def _show_recreations(sizes: Sequence[float]) -> None:
    print("MiB after each LLM: " + ", ".join(f"{size:.1f}" for size in sizes))
    print(f"growth per re-creation: {growth_per_recreation(sizes):+.1f} MiB")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print slopes and failures. The exit code is 1 when anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0, help="how long to load the server")
    parser.add_argument("--warm-up", type=float, help="minutes that do not count; default: a third")
    parser.add_argument("--workers", type=int, default=8, help="workers that ask, one request at a time each")
    parser.add_argument("--pause", type=float, default=0.2, help="seconds that a worker rests, on average")
    parser.add_argument("--sample-seconds", type=float, default=2.0, help="between samples of memory")
    parser.add_argument("--seed", type=int, default=0, help="of the random requests")
    parser.add_argument("--recreate", type=int, metavar="N", help="make and delete LLM so many times instead")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("server_flags", nargs="*", help="further flags of `jaxllm serve`, after --")
    given = parser.parse_args(arguments)
    if given.recreate is not None:
        sizes = recreate(given.recreate)
        print(json.dumps({"mib": sizes})) if given.json else _show_recreations(sizes)
        return
    if given.warm_up is None:
        given.warm_up = given.minutes / 3
    if given.minutes - given.warm_up < 3.5:
        parser.error("slopes need at least 3.5 minutes after the warm-up")
    report = soak(given)
    print(json.dumps(report, indent=1)) if given.json else show(report)
    healthy = report["rests_at_the_end"] and report["exit_code"] == 0
    sys.exit(0 if healthy and not report["failed"] and not report["errors_in_log"] else 1)


if __name__ == "__main__":
    main()
