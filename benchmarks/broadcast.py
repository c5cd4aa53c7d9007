"""What a step of an engine on several hosts costs its first process: telling the others of it.

The others are processes on this machine. Of more than eight, several share a process: connections like any other.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np

from jaxllm.hosts.follower import FollowerGroup
from jaxllm.hosts.leader import LeaderGroup
from jaxllm.hosts.placement import Placement

FOLLOWERS = (1, 2, 8, 64, 255)
STEPS = {"8 decodes": 1_200, "256 decodes": 30_000, "8,192 tokens": 130_000}
"""Bytes of a step's packed input, about, for a model with one page table."""
PROCESSES = 8
SECONDS_BETWEEN = 0.01


def follow(place: Placement) -> None:
    """Take all calls, and report how late each was, in seconds."""
    group = FollowerGroup(place, None)
    group.join(120)
    late: dict[str, list[float]] = {}
    for call in group.calls():
        if call.name == "done":
            break
        sent = float(call.arrays[0].array())
        late.setdefault(call.name, []).append(time.monotonic() - sent)
    group.gather("late", {name: float(np.median(values)) for name, values in late.items()})
    # The first process ends.
    list(group.calls())
    group.close()


def lead(followers: int, port: int, steps: int) -> list[dict[str, Any]]:
    """Publish so many steps of each size to so many followers."""
    place = Placement(followers + 1, 0, "127.0.0.1", port, "benchmark")
    group = LeaderGroup(place, None)
    group.join(120)
    found = []
    for name, size in STEPS.items():
        packed = np.zeros(size // 4, np.int32)
        wall, processor = np.zeros(steps), np.zeros(steps)
        for step in range(steps):
            time.sleep(SECONDS_BETWEEN)
            began, used = time.monotonic(), time.thread_time()
            group.publish(name, (np.float64(began), packed))
            processor[step], wall[step] = time.thread_time() - used, time.monotonic() - began
        found.append(
            {
                "followers": followers,
                "step": name,
                "bytes": size,
                "cpu_us": round(1e6 * float(np.median(processor)), 1),
                "wall_us": round(1e6 * float(np.median(wall)), 1),
            }
        )
    group.publish("done", ())
    every = group.gather("late", {})[1:]
    for each in found:
        late = [follower[each["step"]] for follower in every]
        each["last_arrives_us"] = round(1e6 * max(late), 1)
    group.close()
    return found


def measure(followers: int, port: int, steps: int) -> list[dict[str, Any]]:
    """The costs with so many followers."""
    processes = min(followers, PROCESSES)
    with ExitStack() as stack:
        for ranks in np.array_split(np.arange(1, followers + 1), processes):
            numbers = [str(rank) for rank in ranks]
            command = [
                sys.executable,
                "-m",
                "benchmarks.broadcast",
                "--follow",
                str(followers + 1),
                str(port),
                *numbers,
            ]
            child = stack.enter_context(subprocess.Popen(command))
            stack.callback(child.kill)
        return lead(followers, port, steps)


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table, or with --json a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--followers", type=int, nargs="+", default=FOLLOWERS)
    parser.add_argument("--steps", type=int, default=200, help="steps of each size")
    parser.add_argument("--port", type=int, default=29650)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--follow", nargs="+", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.follow:
        size, port, *ranks = args.follow
        places = [Placement(size, rank, "127.0.0.1", port, "benchmark") for rank in ranks]
        with ThreadPoolExecutor(len(places)) as pool:
            list(pool.map(follow, places))
        return
    say = partial(print, flush=True)
    if not args.json:
        say(f"{'followers':>9} {'step':>12} {'bytes':>8} {'CPU us':>8} {'wall us':>8} {'last arrives us':>16}")
    for number, followers in enumerate(args.followers):
        for found in measure(followers, args.port + 2 * number, args.steps):
            if args.json:
                say(json.dumps(found))
                continue
            cells = [found[name] for name in ("step", "bytes", "cpu_us", "wall_us", "last_arrives_us")]
            say("{:>9} {:>12} {:>8} {:>8} {:>8} {:>16}".format(followers, *cells))


if __name__ == "__main__":
    main()
