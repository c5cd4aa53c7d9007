"""One engine in several processes, joined by gloo: a process that dies ends all.

`test_tensor_parallel.py` compares its tokens with those of one process.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.ports import free_ports

SCRIPT = str(Path(__file__).with_name("generate_on_devices.py"))

GENERATE = """
import sys
from jaxllm import LLM, SamplingParams
from tests.e2e.parallel.generate_on_devices import options_for
rank, port = int(sys.argv[1]), int(sys.argv[2])
options = options_for("2") | {"nnodes": 2, "node_rank": rank, "master_port": port, "max_num_seqs": 2}
if rank:
    from jaxllm.config import EngineConfig
    from jaxllm.load import follow_engine
    follow_engine(EngineConfig.from_options(options))
else:
    with LLM(**options) as llm:
        params = SamplingParams(temperature=0, max_tokens=12)
        print(list(llm.generate("Once upon a time", params, use_tqdm=False)[0].outputs[0].token_ids), flush=True)
        while "ends" in sys.argv:
            llm.generate("Once upon a time", params, use_tqdm=False)
"""


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A child process that ends with the test."""
    # Each process has as many devices as it needs, not those of this one.
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": "."}
    environment.pop("JAX_NUM_CPU_DEVICES", None)
    with subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def run_together(size: int, devices: int) -> dict[str, Any]:
    """The result of the first of `size` processes with so many devices in all."""
    port = free_ports()
    with ExitStack() as stack:
        arguments = [[SCRIPT, "--process", str(rank), str(size), str(port), str(devices)] for rank in range(size)]
        children = [stack.enter_context(process(*each)) for each in arguments]
        said = [child.communicate(timeout=600) for child in children]
        assert [child.returncode for child in children] == [0] * size, [error for _, error in said]
    found: dict[str, Any] = json.loads(said[0][0].splitlines()[-1])
    return found


@pytest.mark.slow
def test_a_killed_process_ends_the_other_which_says_so() -> None:
    """Also one that waits in a collective. A group on the same port begins again."""
    port = free_ports()
    with ExitStack() as stack:
        children = [stack.enter_context(process("-c", GENERATE, str(rank), str(port), "ends")) for rank in (0, 1)]
        assert children[0].stdout is not None
        # Gloo writes there as well.
        first = next(line for line in children[0].stdout if "Gloo" not in line)
        children[1].send_signal(signal.SIGKILL)
        began = time.monotonic()
        _, error = children[0].communicate(timeout=60)
        assert time.monotonic() - began < 10
        assert children[0].returncode == 1
        lines = [line for line in error.splitlines() if "ends: the connection to" in line]
        assert len(lines) == 1, error
        assert "process 1" in lines[0]
    with ExitStack() as stack:
        children = [stack.enter_context(process("-c", GENERATE, str(rank), str(port))) for rank in (0, 1)]
        output, error = children[0].communicate(timeout=120)
        assert output.splitlines()[-1] == first.strip(), error
