"""The host's work per step and the gap between device steps, with a stand-in for the device."""

import argparse
import gc
import json
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.shared.stand_in_device import HEADROOM, Clock, stand_in_engine
from jaxllm.engine.engine import Engine
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams

RUNNING = (1, 64, 256, 1024)
CONTEXTS = (100, 10_000, 100_000)
STEP_MS = (0.0, 2.0, 5.0, 10.0)
BUDGET = 8192
BLOCK_SIZE = 16

PARTS = ("schedule", "dispatch", "collect", "update")


def prepare(running: int, context: int, clock: Clock, async_scheduling: bool) -> Engine:
    """An engine in which `running` requests of `context` tokens, most of them shared, decode."""
    engine = stand_in_engine(
        running=running,
        context=context + HEADROOM,
        budget=max(BUDGET, running),
        clock=clock,
        async_scheduling=async_scheduling,
        block_size=BLOCK_SIZE,
    )
    rng = np.random.default_rng(0)
    shared = rng.integers(10, 30_000, context).astype(np.int32)
    params = SamplingParams(max_tokens=None, ignore_eos=True)
    for index in range(running):
        # Lengths differ, so that an equal share of the requests crosses into a new page in every step.
        own = rng.integers(10, 30_000, index % BLOCK_SIZE).astype(np.int32)
        engine.add_request(
            Request(request_id=str(index), prompt_token_ids=np.concatenate([shared, own]), params=params)
        )
        if index == 0:
            while not engine.step():
                pass  # Its pages are the prefix of the others.
    while engine.stats().num_tokens != running:
        engine.step()
    return engine


class Stopwatch:
    """Processor time of this thread in the parts of a step: on an idle machine, the time less waiting."""

    def __init__(self, engine: Engine) -> None:
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)
        for owner, name in (
            (engine.scheduler, "schedule"),
            (engine.runner, "dispatch"),
            (engine.runner, "collect"),
            (engine.scheduler, "update"),
        ):
            setattr(owner, name, self._timed(name, getattr(owner, name)))

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            began = time.thread_time()
            result = function(*arguments)
            self.seconds[name].append(time.thread_time() - began)
            return result

        return timed


def measure(
    running: int, context: int, step_ms: float, steps: int, *, async_scheduling: bool, processor_time: bool
) -> dict[str, Any]:
    """Medians over `steps` steps in which all requests decode."""
    clock = Clock(0.0, processor_time=processor_time)
    engine = prepare(running, context, clock, async_scheduling)
    clock.step_seconds = step_ms / 1e3
    gc.collect()
    gc.freeze()  # as the engine process does
    watch = Stopwatch(engine)
    for _ in range(5):
        engine.step()
    watch.seconds.clear()
    clock.gaps.clear()
    total = []
    began = clock.now()
    for _ in range(steps):
        before = time.thread_time()
        outputs = engine.step()
        total.append(time.thread_time() - before)
        assert len(outputs) == running
    elapsed = clock.now() - began
    assert engine.runner.watch.count == 0
    engine.close()
    gc.unfreeze()
    parts = {name: float(np.median(watch.seconds[name])) * 1e3 for name in PARTS}
    host = float(np.median(total)) * 1e3
    gaps = np.array(clock.gaps) * 1e6
    return {
        "running": running,
        "context": context,
        "step_ms": step_ms,
        "async": async_scheduling,
        "tokens_per_s": running * steps / elapsed,
        "host_ms": host,
        "host_p99_ms": float(np.percentile(total, 99)) * 1e3,
        "parts_ms": parts | {"outputs": host - sum(parts.values())},
        "gap_us": float(np.median(gaps)),
        "gap_p99_us": float(np.percentile(gaps, 99)),
    }


def show(row: dict[str, Any]) -> None:
    """One line of the table."""
    parts = " ".join(f"{row['parts_ms'][name]:8.3f}" for name in (*PARTS, "outputs"))
    print(
        f"{row['running']:7} {row['context']:7} {row['step_ms']:5.1f} {'on' if row['async'] else 'off':>5} "
        f"{row['tokens_per_s']:9.0f} {row['host_ms']:7.3f} {row['host_p99_ms']:7.3f} {parts} "
        f"{row['gap_us']:7.0f} {row['gap_p99_us']:7.0f}",
        flush=True,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--running", type=int, nargs="+", default=RUNNING, help="numbers of running requests")
    parser.add_argument("--context", type=int, nargs="+", default=CONTEXTS, help="tokens each request has")
    parser.add_argument("--step-ms", type=float, nargs="+", default=STEP_MS, help="milliseconds of a device step")
    parser.add_argument("--steps", type=int, default=200, help="steps of each measurement")
    parser.add_argument("--all", action="store_true", help="every step time at every context, not only at the first")
    parser.add_argument("--no-async-scheduling", action="store_true", help="let the device wait for the host")
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="clock of this thread's processor time instead of real time, for a machine that is busy with other things",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)

    if not options.json:
        print("processor milliseconds of the host per step (median, 99th percentile, parts); gap on the device in us")
        print(
            f"{'running':>7} {'context':>7} {'step':>5} {'async':>5} {'tokens/s':>9} {'host':>7} {'p99':>7} "
            f"{' '.join(f'{name:>8}' for name in (*PARTS, 'outputs'))} {'gap':>7} {'p99':>7}"
        )
    rows = []
    for running in options.running:
        for context in options.context:
            for step_ms in options.step_ms if options.all or context == options.context[0] else options.step_ms[:1]:
                row = measure(
                    running,
                    context,
                    step_ms,
                    options.steps,
                    async_scheduling=not options.no_async_scheduling,
                    processor_time=options.processor_time,
                )
                rows.append(row)
                if not options.json:
                    show(row)
    if options.json:
        print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
