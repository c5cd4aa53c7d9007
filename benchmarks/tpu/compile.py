"""One compilation for a TPU that is not there, in a process of its own: it leaves the compiler's dumps in a folder."""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.tpu.bundles import DUMPS

if TYPE_CHECKING:
    from benchmarks.tpu.kernels import Call

MODULE = "module.json"
"""File in the dump folder: the Pallas calls with their known operands, and estimates for the other operations."""

ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "JAX_PLATFORMS": "cpu",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


def compile_case(chip: str, kernel: str, case: str, folder: Path, peer_path: Path | None, timeout: float = 600) -> None:
    """Compile in a child process, which writes the dumps and `MODULE` into `folder`.

    Raises:
        RuntimeError: The compilation failed (the message ends with what the compiler said) or took over `timeout` s.
    """
    command = [sys.executable, "-m", "benchmarks.tpu.compile", chip, kernel, case, str(folder)]
    command += ["--peer-path", str(peer_path)] if peer_path else []
    run_child(command, folder, timeout)


def run_child(command: list[str], folder: Path, timeout: float) -> None:
    """Run `command` with libtpu's dumps going to `folder`; raises RuntimeError with its last words if it fails."""
    environment = os.environ | ENVIRONMENT | {"LIBTPU_INIT_ARGS": dump_flags(folder)}
    with tempfile.TemporaryFile("w+") as log:
        try:
            result = subprocess.run(
                command, env=environment, stdout=log, stderr=subprocess.STDOUT, check=False, timeout=timeout
            )
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"no result after {timeout:.0f} s") from error
        log.seek(0)
        text = log.read()
    if result.returncode:
        raise RuntimeError("\n".join(text.splitlines()[-8:]))


def dump_flags(folder: Path) -> str:
    """Flags of libtpu (`LIBTPU_INIT_ARGS`) with which it writes its programs into `folder`."""
    # Without the label the compiler would write its program after each of its seventy passes.
    return f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true --xla_jf_dump_llo_pass_label_regex={DUMPS}"


def compile_for(chip_name: str, call: "Call", folder: Path) -> None:
    """Compile `call` for one device of the chip and write `MODULE`."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from benchmarks.tpu.operands import as_words, known_operands

    device = absent_devices(chip_name)[0]
    mesh = Mesh(np.array([device]), ("tp",))
    replicated = NamedSharding(mesh, PartitionSpec())
    specs = [jax.ShapeDtypeStruct(argument.shape, argument.dtype, sharding=replicated) for argument in call.arguments]
    with jax.set_mesh(mesh):  # Mosaic reads the chip from the mesh
        traced = jax.jit(call.function, donate_argnums=call.donated).trace(*specs)
        compiled = traced.lower().compile()
    values = [argument if isinstance(argument, np.ndarray | np.generic) else None for argument in call.arguments]
    calls = known_operands(traced.jaxpr, values)
    text = compiled.as_text() or ""
    module = {
        "kernels": [{"name": name, "operands": [as_words(value) for value in operands]} for name, operands in calls],
        "other_cycles": other_cycles(text),
        "choices": call.choices,
        "temporaries": compiled.memory_analysis().temp_size_in_bytes,
    }
    (folder / MODULE).write_text(json.dumps(module))


def other_cycles(text: str) -> dict[str, int]:
    """XLA's own estimate in cycles for each operation of the entry computation that is not a Pallas kernel."""
    entry = text[text.find("\nENTRY") :]
    pattern = r'^\s*(?:ROOT )?%?([\w.-]+) = .*"estimated_cycles":"(\d+)"'
    return {name: int(cycles) for name, cycles in re.findall(pattern, entry, re.MULTILINE)}


def absent_devices(chip_name: str) -> list[Any]:
    """The devices of the smallest topology of a chip in `CHIPS`."""
    from jax.experimental import topologies

    from jaxllm.pallas_kernels.chips import CHIPS

    chip = CHIPS[chip_name]
    options = dict(chip.topology_options)
    return list(topologies.get_topology_desc(platform="tpu", topology_name=chip.topology, **options).devices)


def main() -> None:
    """Compile one case; started by `compile_case`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("chip")
    parser.add_argument("kernel")
    parser.add_argument("case")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--peer-path", type=Path)
    options = parser.parse_args()

    import jax

    from benchmarks.tpu.cases import CASES
    from benchmarks.tpu.kernels import build

    devices = absent_devices(options.chip)
    # The peers ask JAX for the first device to choose their block sizes.
    jax.devices = lambda *_: devices
    call = build(options.kernel, CASES[options.case], options.peer_path)
    compile_for(options.chip, call, options.folder)


if __name__ == "__main__":
    main()
