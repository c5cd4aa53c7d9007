"""Compile the towers and steps of models that see images for a described H100; `scripts/gpu_compile --images` runs it.

Writes `benchmarks/published/plans/h100.json`; `scripts/bench models --write` makes a table of docs/models.md of it.
Weights are not needed, and all layers are compiled: memory is that of the whole model.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.models import FLAGS, FOLDER, GPU_PLANS, LONGEST, sees
from jaxllm.config import EngineConfig
from jaxllm.executor.compile.buckets import Bucket
from jaxllm.executor.resolve import resolve_config
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.pallas_kernels.chips import CHIPS
from jaxllm.planning.images import image_sizes
from jaxllm.planning.memory import CompiledProgram, compile_image, compile_step, measure
from jaxllm.planning.roofline import estimate
from jaxllm.planning.target import TargetDevices
from scripts.described_gpus import GPUS
from scripts.gpu_steps import ROWS, count_thunks

CHIP = "h100"


def engine_options(path: Path, folder: Path) -> dict[str, Any]:
    """The engine's, for the published sizes at `path`, whose `config.json` is written into `folder`."""
    (folder / "config.json").write_text(path.read_text())
    options: dict[str, Any] = {"model": str(folder), "max_model_len": LONGEST, "max_num_seqs": ROWS}
    given = FLAGS.get(path.stem, [])
    for flag, value in zip(given[::2], given[1::2], strict=True):
        options[flag.removeprefix("--").replace("-", "_")] = int(value)
    return options


def step_buckets(rows: int) -> list[Bucket]:
    """Decodes of all requests, and the prompt that has the tokens of an image."""
    return [Bucket(ROWS, ROWS), Bucket(1 << (rows - 1).bit_length(), ROWS)]


def program_figures(compiled: CompiledProgram, thunks: str) -> dict[str, Any]:
    """What is kept of a compiled program, whose thunks XLA has written down."""
    from_host, waits, kernels, in_loops = count_thunks(thunks)
    counts = {"from_host": from_host, "waits": waits, "kernels": kernels, "in_loops": in_loops}
    return {"temporaries": compiled.temporary_bytes, "compile_seconds": round(compiled.seconds, 1)} | counts


def last_thunks(dump: Path) -> str:
    """The list of thunks that XLA wrote last."""
    return max(
        dump.glob("*thunk_sequence_after_thunk_passes.txt"), key=lambda path: path.stat().st_mtime_ns
    ).read_text()


def plan(path: Path, dump: Path) -> dict[str, Any]:
    """Figures of the largest tower and of two steps of a model."""
    target = TargetDevices(tuple(GPUS[CHIP].devices()), absent=True, chip=CHIPS[CHIP], topology="1x1x1")
    with tempfile.TemporaryDirectory() as name:
        options = engine_options(path, Path(name))
        resolved = resolve_config(EngineConfig.from_options(options), list(target.devices))
        return figures(resolved, target, dump)


def figures(resolved: ResolvedConfig, target: TargetDevices, dump: Path) -> dict[str, Any]:
    """The same of an engine's configuration."""
    assert target.chip is not None
    tower, memory = resolved.model.tower, measure(resolved, target)
    assert tower is not None
    patches = image_sizes(resolved)[-1]
    rows = tower.rows_of(patches)
    encode = program_figures(compile_image(resolved, patches), last_thunks(dump))
    steps = []
    for bucket in step_buckets(rows):
        found = program_figures(compile_step(resolved, bucket), last_thunks(dump))
        guess = estimate(resolved, target.chip, memory.weights, memory.page, bucket)
        steps.append({"tokens": bucket.tokens, "rows": bucket.rows, "roofline": guess.seconds} | found)
    image = {"patches": patches, "rows": rows} | encode
    return {"attention": resolved.forward.attention, "weights": memory.weights, "image": image, "steps": steps}


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="scripts/gpu_compile --images", description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="NAME", help="parts of names (all models that see images)")
    names = parser.parse_args().models
    dump = Path(os.environ["XLA_FLAGS"].partition("--xla_dump_to=")[2].split()[0])
    plans: dict[str, Any] = json.loads(GPU_PLANS.read_text()) if GPU_PLANS.exists() else {}
    for path in filter(sees, sorted(FOLDER.glob("*.json"))):
        if not names or any(name.lower() in path.stem.lower() for name in names):
            known = json.loads(path.read_text())["_name_or_path"]
            plans[known] = plan(path, dump)
            print(known, plans[known], flush=True)
            GPU_PLANS.write_text(json.dumps(plans, indent=1, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
