"""Compile paged attention for a described GPU and report what ptxas says of it; `scripts/gpu_compile` runs this.

For Hopper it is the kernel in Mosaic, for Ampere and Ada that through Triton. Fails (exit code 1) where something does
not compile, spills registers, or copies the KV cache.
"""

import argparse
import dataclasses
import os
import re
import site
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxllm.pallas_kernels.paged_attention.cases import MODEL_HEADS, Case, Inputs, abstract_inputs
from jaxllm.pallas_kernels.paged_attention.triton.options import HALF_TYPES
from scripts.described_gpus import GPUS

KERNELS = {"h100": "gpu", "h200": "gpu", "a100": "triton", "l4": "triton"}
"""The implementation of paged attention for each GPU."""

_MIXED = (*((1, 2047),) * 32, (1000, 0), (1016, 3000))


def _case(name: str, heads: tuple[int, int, int] = (32, 8, 128), **fields: Any) -> Case:
    return Case(
        name,
        _MIXED,
        num_heads=heads[0],
        num_kv_heads=heads[1],
        head_size=heads[2],
        **{"page_size": 64, "dtype": "bfloat16", **fields},
    )


CASES = (
    *(_case(name, heads) for heads, name in {heads: name for name, heads in reversed(MODEL_HEADS.items())}.items()),
    _case("drafts", most_short=4),
    _case("drafts_7_group_7", (28, 4, 128), most_short=8),
    _case("page_16", page_size=16),
    _case("page_256", page_size=256),
    _case("window_soft_cap", window=1024, soft_cap=50.0),
    _case("sinks_window", (64, 8, 64), window=128, sinks=True),
    _case("alibi", alibi=True),
    _case("int8", kv_dtype="int8", k_scale=0.01, v_scale=0.01),
    _case("float8_e4m3fn", kv_dtype="float8_e4m3fn", k_scale=0.5, v_scale=0.5),
    _case("float8_e5m2", kv_dtype="float8_e5m2"),
    *(_case(f"head_{size}", (32, 8, size)) for size in (64, 80, 96, 256)),
    *(_case(f"head_{size}_int8", (32, 8, size), kv_dtype="int8") for size in (64, 256)),
    *(_case(f"group_{group}", (4 * group, 4, 128)) for group in (1, 7, 16)),
)
"""Shapes of models (one of those that share them), and every feature at least once. Each compiles both kernels."""

KNOWN_SPILLS = {"head_256_int8": 40}
"""Bytes, by case. Converting a tile alongside an accumulator of 64 x 256 is more than 240 registers hold."""

FEW_SPILLS = {"gpu": 0, "triton": 88}
"""Bytes that are no matter, by kernel: Triton chooses registers itself, and a program of the second has 255."""


@dataclasses.dataclass(frozen=True)
class Kernel:
    """The report of ptxas on a kernel."""

    name: str
    registers: int
    spill_bytes: int
    ptx_lines: int


def parse_kernel(name: str, ptxas: str, ptx: str) -> Kernel:
    """The figures in a report of `ptxas -v`.

    Raises:
        ValueError: the report does not name registers and spills.
    """
    registers = re.search(r"Used (\d+) registers", ptxas)
    spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", ptxas)
    if registers is None or spills is None:
        raise ValueError(f"ptxas reported no registers of {name}: {ptxas!r}")
    return Kernel(name, int(registers[1]), int(spills[1]) + int(spills[2]), ptx.count("\n"))


def main() -> int:
    """Compile, print a table, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=KERNELS, action="append", help="may be repeated; default: all")
    parser.add_argument("--only", help="only cases whose name contains this")
    arguments = parser.parse_args()
    devices = arguments.device or list(KERNELS)
    if len(devices) > 1:
        return max(_in_a_process(device, arguments.only) for device in devices)
    cases = [case for case in CASES if arguments.only is None or arguments.only in case.name]
    if KERNELS[devices[0]] == "triton":
        cases = [case for case in cases if str(case.cache_dtype) in HALF_TYPES]
    dump = Path(os.environ["MOSAIC_GPU_DUMP_TO"])
    print(f"PTX and reports of ptxas: {dump}")
    print(f"{'gpu':5} {'case':18} {'kernel':24} {'registers':>9} {'spilled B':>9} {'PTX lines':>9} {'compile s':>9}")
    problems = [problem for case in cases for problem in _compile_case(devices[0], case, dump)]
    for problem in problems:
        print(f"FAILED {problem}")
    print("failed" if problems else f"all {len(cases)} cases compiled; no unknown spills, no copy of the cache")
    return bool(problems)


def _in_a_process(device: str, only: str | None) -> int:
    """Do it for one device, with a folder of its own; returns the exit code.

    One process reports a kernel once, though two devices have it.
    """
    folder = Path(os.environ["MOSAIC_GPU_DUMP_TO"]) / device
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "scripts.gpu_compile", "--device", device]
    command += [] if only is None else ["--only", only]
    environment = {"MOSAIC_GPU_DUMP_TO": str(folder), "XLA_FLAGS": f"--xla_dump_to={folder}"}
    return subprocess.run(command, env=os.environ | environment, check=False).returncode


def _compile_case(device: str, case: Case, dump: Path) -> list[str]:
    """Compile one case for one GPU and print its rows. Returns what is wrong."""
    earlier = set(dump.iterdir())
    start = time.perf_counter()
    try:
        memory = _compile(device, case)
    except (NotImplementedError, RuntimeError, ValueError) as error:
        return [f"{device} {case.name}: {str(error).splitlines()[0][:200]}"]
    seconds = time.perf_counter() - start
    problems = []
    cache = int(np.prod(abstract_inputs(case).kv_cache.shape)) * case.cache_dtype.itemsize
    if memory.alias_size_in_bytes < cache or memory.temp_size_in_bytes > cache / 2:
        problems.append(f"{device} {case.name}: the cache is copied: {memory}")
    new = sorted(set(dump.iterdir()) - earlier)
    kernels = [*_of_mosaic(new)] if KERNELS[device] == "gpu" else [*_of_triton(new)]
    if len(kernels) < 2:
        problems.append(f"{device} {case.name}: {len(kernels)} kernels, expected decode and prefill")
    for kernel in kernels:
        name = re.sub(r"_\d+$", "", kernel.name)
        print(
            f"{device:5} {case.name:18} {name:24} {kernel.registers:9} {kernel.spill_bytes:9} {kernel.ptx_lines:9}"
            f" {seconds:9.1f}",
            flush=True,
        )
        if kernel.spill_bytes > max(KNOWN_SPILLS.get(case.name, 0), FEW_SPILLS[KERNELS[device]]):
            problems.append(f"{device} {case.name}: {name} spills {kernel.spill_bytes} bytes")
    return problems


def _of_mosaic(files: list[Path]) -> Iterator[Kernel]:
    """Mosaic runs ptxas itself, and leaves its report alongside the PTX."""
    for path in files:
        if path.suffix == ".ptxas":
            yield parse_kernel(path.stem, path.read_text(), path.with_suffix(".ptx").read_text())


def _of_triton(files: list[Path]) -> Iterator[Kernel]:
    """XLA leaves the PTX of each kernel of a program."""
    for path in files:
        text = path.read_text() if path.suffix == ".ptx" else ""
        name, target = (re.search(pattern, text) for pattern in (r"\.entry (paged_attention_\w+)", r"\.target (\w+)"))
        if name is not None and target is not None:
            command = [str(_ptxas()), "-v", f"-arch={target[1]}", str(path), "-o", os.devnull]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            yield parse_kernel(name[1], done.stderr, text)


def _ptxas() -> Path:
    """The assembler among what `jax[cuda13]` has installed."""
    return next(path for folder in site.getsitepackages() for path in Path(folder).glob("nvidia/**/bin/ptxas"))


def _compile(device: str, case: Case) -> Any:
    """Compile the operation on `case`; what the compiler says of memory."""
    mesh = Mesh(np.array(GPUS[device].devices()), ("x",))
    replicated = NamedSharding(mesh, PartitionSpec())

    def place(leaf: Any) -> Any:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=replicated)

    def run(kv_cache: jax.Array, inputs: Inputs) -> tuple[jax.Array, jax.Array]:
        return dataclasses.replace(inputs, kv_cache=kv_cache).call(KERNELS[device], jnp.int32(0))

    inputs = jax.tree.map(place, abstract_inputs(case))
    cache, others = inputs.kv_cache, dataclasses.replace(inputs, kv_cache=place(jax.ShapeDtypeStruct((), jnp.int32)))
    with jax.set_mesh(mesh):
        return jax.jit(run, donate_argnums=0).lower(cache, others).compile().memory_analysis()


if __name__ == "__main__":
    sys.exit(main())
