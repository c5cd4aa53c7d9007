"""Host cost of one decode step: schedule() and update() for many running requests, with no device work."""

import argparse
import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxllm.kv.groups import CacheGroups
from jaxllm.kv.manager import KVManager
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.scheduler.scheduler import Scheduler

RUNNING = (64, 256, 1024)
CONTEXTS = (100, 10_000)
BLOCK_SIZE = 16


def prepare(running: int, context: int, steps: int, caching: bool, windows: tuple[int, ...] = (0,)) -> Scheduler:
    """A scheduler in which `running` requests of about `context` tokens have been computed and decode.

    `windows` has that of each page table of a request, 0 for none.
    """
    max_model_len = context + BLOCK_SIZE + steps + 2
    groups = CacheGroups(windows, BLOCK_SIZE, running * max_model_len)
    pages = KVManager(
        running * (groups.most_pages(max_model_len) + len(windows)) + 1,
        BLOCK_SIZE,
        enable_prefix_caching=caching,
        groups=groups,
    )
    scheduler = Scheduler(
        max_num_seqs=running, max_num_batched_tokens=running * max_model_len, max_model_len=max_model_len, pages=pages
    )
    rng = np.random.default_rng(0)
    params = SamplingParams(max_tokens=None)
    for index in range(running):
        # Lengths differ, so that an equal share of the requests crosses into a new page in every step.
        prompt = rng.integers(3, 32_000, context + index % BLOCK_SIZE).astype(np.int32)
        scheduler.add(Request(request_id=str(index), prompt_token_ids=prompt, params=params, eos_token_ids=(2,)))
    plan = scheduler.schedule()
    assert plan is not None
    scheduler.update(plan, np.full(plan.num_rows, 5, np.int32))
    assert scheduler.num_running == running
    return scheduler


def measure(running: int, context: int, steps: int, caching: bool, windows: tuple[int, ...] = (0,)) -> dict[str, float]:
    """Median milliseconds of `schedule` and `update` over `steps` steps, and their 99th percentile together.

    CPU time of this thread, which equals wall time on an idle machine and hardly changes on a busy one.
    """
    scheduler = prepare(running, context, steps, caching, windows)
    rng = np.random.default_rng(1)
    times = np.zeros((steps, 2))
    for index in range(steps):
        start = time.thread_time()
        plan = scheduler.schedule()
        scheduled = time.thread_time()
        assert plan is not None
        assert plan.num_decodes == running
        sampled = rng.integers(3, 32_000, running).astype(np.int32)
        before = time.thread_time()
        finished = scheduler.update(plan, sampled)
        times[index] = scheduled - start, time.thread_time() - before
        assert not finished
    schedule, update = np.median(times, axis=0) * 1e3
    total = times.sum(axis=1) * 1e3
    return {
        "schedule_ms": float(schedule),
        "update_ms": float(update),
        "total_ms": float(np.median(total)),
        "p99_ms": float(np.percentile(total, 99)),
    }


def measure_vllm(python: str, running: int, context: int, steps: int, caching: bool) -> dict[str, float]:
    """The same for the scheduler of the vLLM that the interpreter `python` can import."""
    script = Path(__file__).parent / "shared" / "vllm_scheduler.py"
    arguments = [str(running), str(context), str(steps), str(int(caching))]
    done = subprocess.run([python, str(script), *arguments], stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--running", type=int, nargs="+", default=RUNNING, help="numbers of running requests")
    parser.add_argument("--context", type=int, nargs="+", default=CONTEXTS, help="tokens each request has at the start")
    parser.add_argument("--steps", type=int, default=200, help="steps of each measurement")
    parser.add_argument("--windows", type=int, nargs="+", default=[0], help="window of each page table, 0 for none")
    parser.add_argument("--vllm", action="store_true", help="measure vLLM's scheduler as well")
    parser.add_argument("--vllm-python", default="python3", help="interpreter that can import vllm")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)

    rows: list[dict[str, Any]] = []
    for running in options.running:
        for context in options.context:
            for caching in (False, True):
                work = (running, context, options.steps, caching)
                known = {"running": running, "context": context, "prefix_caching": caching}
                rows.append({"engine": "jaxllm", **known, **measure(*work, tuple(options.windows))})
                if options.vllm:
                    rows.append({"engine": "vllm", **known, **measure_vllm(options.vllm_python, *work)})
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    print("CPU milliseconds per step: medians, and the 99th percentile of the total")
    names = ("engine", "running", "context", "caching", "schedule", "update", "total", "p99")
    print(" ".join(f"{name:>8}" for name in names))
    for row in rows:
        shape = (row["engine"], row["running"], row["context"], "on" if row["prefix_caching"] else "off")
        figures = (row["schedule_ms"], row["update_ms"], row["total_ms"], row["p99_ms"])
        print(" ".join([*(f"{value:>8}" for value in shape), *(f"{value:8.3f}" for value in figures)]))


if __name__ == "__main__":
    main()
