"""A process that measures block sizes one after the other, and is replaced when one of them does not end."""

import argparse
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from benchmarks.tpu.cases import MODELS, Case, Model
from benchmarks.tpu.compile import ENVIRONMENT, MODULE, absent_devices, compile_for, dump_flags
from jaxllm.pallas_kernels.chips import CHIPS, Chip
from jaxllm.pallas_kernels.paged_attention.tpu.common import Blocks

SMALL = {"decode": Blocks(128, 128, 2), "prefill": Blocks(128, 128, 2, 128, 1)}
"""For the kernel that is not looked at: it has nothing to do in these cases, and should compile quickly."""


class Worker:
    """Measures cases in a process of its own: a chip is not hung for ever, and libtpu has one folder for programs."""

    def __init__(self, chip: str | None, timeout: float = 240) -> None:
        """`chip` need not be here, and is looked at by the static model; None takes times on the device that is."""
        self._chip, self._timeout = chip, timeout
        self._process: subprocess.Popen[str] | None = None

    def microseconds(self, case: Case, kernel: str, blocks: Blocks) -> float:
        """Time of our kernels in a case.

        Raises:
            RuntimeError: they do not compile, or not in time.
        """
        return float(self._ask({**_describe(case), "kernel": kernel, "blocks": asdict(blocks)})["microseconds"])

    def blocks_in_use(self, case: Case, kernel: str) -> Blocks:
        """Blocks that the kernel takes now: tuned ones of the chip, or its own choice."""
        return Blocks(**self._ask({**_describe(case), "kernel": kernel})["blocks"])

    def device_kind(self) -> str:
        """The name that the worker's device reports."""
        return str(self._ask({})["device_kind"])

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        process = self._process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(question) + "\n")
        process.stdin.flush()
        if not select.select([process.stdout], [], [], self._timeout)[0]:
            self.close()
            raise RuntimeError(f"no result after {self._timeout:.0f} s")
        line = process.stdout.readline()
        if not line:
            self.close()
            raise RuntimeError("the compiler crashed")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def _start(self) -> "subprocess.Popen[str]":
        arguments = ["benchmarks.tpu.worker", self._chip] if self._chip else ["benchmarks.tpu.timed"]
        command = [sys.executable, "-m", *arguments]
        environment = os.environ | (ENVIRONMENT if self._chip else {})
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)


def _describe(case: Case) -> dict[str, Any]:
    return {"name": case.name, "model": case.model.name, "page_size": case.page_size, "rows": case.rows}


def key_of(kernel: str, model: Model, page_size: int) -> dict[str, Any]:
    """The key of a tuned entry, in the order in which files have it."""
    return {
        "kernel": kernel,
        "head_size": model.head_size,
        "num_kv_heads": model.num_kv_heads,
        "group": model.num_heads // model.num_kv_heads,
        "page_size": page_size,
        "q_dtype": "bfloat16",
        "kv_dtype": "bfloat16",
    }


def _answer(chip: Chip, question: dict[str, Any], dumps: Path) -> dict[str, Any]:
    import jax
    import numpy as np
    from jax.errors import JaxRuntimeError
    from jax.sharding import Mesh

    from benchmarks.tpu.kernels import jaxllm_call
    from benchmarks.tpu.report import measure

    case, kernel = case_of(question), question["kernel"]
    if "blocks" not in question:
        with jax.set_mesh(Mesh(np.array(absent_devices(chip.name)[:1]), ("tp",))):
            return {"blocks": asdict(blocks_in_use(kernel, case))}
    blocks = SMALL | {kernel: Blocks(**question["blocks"])}
    try:
        compile_for(chip.name, jaxllm_call(case, **{f"{name}_blocks": size for name, size in blocks.items()}), dumps)
        module = json.loads((dumps / MODULE).read_text())
        return {"microseconds": measure(chip, "jaxllm", case, dumps, module).microseconds}
    except (JaxRuntimeError, ValueError, NotImplementedError) as error:
        return {"error": str(error).splitlines()[0][:200]}
    finally:
        for file in dumps.iterdir():
            file.unlink()


def blocks_in_use(kernel: str, case: Case) -> Blocks:
    """What the kernel takes for the device of the present mesh, or for the default one."""
    from jaxllm.pallas_kernels.paged_attention.tpu.blocks import choose_blocks
    from jaxllm.pallas_kernels.paged_attention.tpu.layout import Dims
    from jaxllm.pallas_kernels.tpu_common.target import target

    fields = key_of(kernel, case.model, case.page_size)
    del fields["kernel"]
    return choose_blocks(kernel, Dims(**fields), case.num_tokens, target())


def case_of(question: dict[str, Any]) -> Case:
    """The case that a question is about."""
    rows = tuple((int(new), int(length)) for new, length in question["rows"])
    return Case(question["name"], MODELS[question["model"]], question["page_size"], rows)


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer questions, one per line, until there are no more."""
    # What JAX and libtpu print goes elsewhere.
    answers: IO[str] = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        answers.write(json.dumps(answer(json.loads(line))) + "\n")
        answers.flush()


def main() -> None:
    """Be the process that asks the compiler for a chip."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("chip")
    chip = CHIPS[parser.parse_args().chip]
    with tempfile.TemporaryDirectory() as dumps:
        # Before libtpu is loaded: it reads its flags once.
        os.environ["LIBTPU_INIT_ARGS"] = dump_flags(Path(dumps))
        serve(lambda question: _answer(chip, question, Path(dumps)))


if __name__ == "__main__":
    main()
