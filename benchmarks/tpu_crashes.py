"""Do processes that compile many executables for an absent TPU survive? libtpu crashes when several threads use it.

Each process compiles the programs of an engine of the demo model as a start does, on several threads.

    scripts/bench tpu_crashes                              40 processes, two at a time
    scripts/bench tpu_crashes --processes 20 --unlocked    without the lock, to see what it is for
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from unittest.mock import patch

from benchmarks.tpu.compile import ENVIRONMENT

EXECUTABLES = 12
WORKERS = 4


def parser() -> argparse.ArgumentParser:
    """The command line."""
    lines = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    lines.add_argument("--processes", type=int, default=40, help="how many compile (40)")
    lines.add_argument("--at-once", type=int, default=2, help="processes at a time (2)")
    lines.add_argument("--unlocked", action="store_true", help="let all threads compile at the same time")
    lines.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return lines


def main() -> int:
    """Run the processes and print how they ended; 1 if one of them died."""
    options = parser().parse_args()
    if options.child:
        compile_all(unlocked=options.unlocked)
        return 0
    start = time.perf_counter()
    with ThreadPoolExecutor(options.at_once) as pool:
        endings = Counter(pool.map(lambda _: _run_child(unlocked=options.unlocked), range(options.processes)))
    seconds = time.perf_counter() - start
    for ending, count in endings.most_common():
        print(f"{count:3} of {options.processes} processes {ending}")
    print(f"{EXECUTABLES} executables each on {WORKERS} threads, {seconds:.0f} s in all")
    return 0 if set(endings) == {_WELL} else 1


_WELL = "compiled everything"


def _run_child(*, unlocked: bool) -> str:
    command = [sys.executable, "-m", "benchmarks.tpu_crashes", "--child", *(["--unlocked"] if unlocked else [])]
    done = subprocess.run(command, env=os.environ | ENVIRONMENT, capture_output=True, text=True, check=False)
    if done.returncode > 0:
        sys.stderr.write(done.stderr[-2000:])
        return f"ended with {done.returncode}"
    return f"were ended by {signal.Signals(-done.returncode).name}" if done.returncode else _WELL


def compile_all(*, unlocked: bool) -> None:
    """Compile for one absent chip, as at the start of an engine."""
    from dataclasses import replace

    from benchmarks.tpu.compile import absent_devices
    from jaxllm.config import EngineConfig
    from jaxllm.executor.compile import compiler
    from jaxllm.executor.compile.executables import Executables
    from jaxllm.executor.compile.generation import generation_programs
    from jaxllm.executor.resolve import resolve_config

    config = EngineConfig.from_options({"max_num_batched_tokens": 32, "max_model_len": 256, "max_num_seqs": 8})
    resolved = resolve_config(config, absent_devices("v5e"))
    programs = generation_programs(resolved, 64)
    assert len(programs.programs) == EXECUTABLES, list(programs.programs)
    executables = Executables(programs, replace(resolved.config.compile, compile_workers=WORKERS))
    with (
        patch.object(compiler, "_LIBTPU", nullcontext()) if unlocked else nullcontext(),
        executables.compiling(programs.buckets.all),
    ):
        pass


if __name__ == "__main__":
    sys.exit(main())
