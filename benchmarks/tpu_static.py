"""Speed of paged attention on a TPU that is not there, from the compiled program.

Each case is compiled for the chip by libtpu, which also writes the final VLIW program of the kernel. Its scalar side is
then run on this machine (lengths and page tables are known, vectors are never computed): which bundles are executed how
often, which DMAs start when, and how long the core waits for them. docs/kernels.md says what that can and cannot tell.

    scripts/bench tpu_static --list
    scripts/bench tpu_static --chip v6e --kernel jaxllm jax --case llama-3-8b/decode-64x1024/page64
    scripts/bench tpu_static --chip v6e v5e --case decode --json figures.json

`--case` takes names or parts of names. The kernel of tpu-inference is compared where its wheel lies unpacked:

    pip download --no-deps tpu-inference -d wheel && python -m zipfile -e wheel/*.whl peer
    scripts/bench tpu_static --kernel tpu-inference --peer-path peer

Nothing of it is installed; of the package only the kernel's modules are imported, in the process that compiles.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.tpu.cases import CASES, Case
from benchmarks.tpu.compile import MODULE, compile_case
from benchmarks.tpu.report import Figures, measure, table
from jaxllm.pallas_kernels.chips import CHIPS, Chip

KERNELS = ("jaxllm", "jax", "tpu-inference")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    lines = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tpus = [chip.name for chip in CHIPS.values() if chip.platform == "tpu"]
    lines.add_argument("--chip", nargs="+", choices=tpus, default=["v6e"], help="chips to compile for (v6e)")
    lines.add_argument("--kernel", nargs="+", choices=KERNELS, default=["jaxllm", "jax"], help="kernels (jaxllm jax)")
    lines.add_argument("--case", nargs="+", default=[""], help="cases, or parts of their names (all)")
    lines.add_argument("--peer-path", type=Path, help="folder with the unpacked wheel of tpu-inference")
    lines.add_argument("--json", type=Path, help="also write all figures there")
    lines.add_argument("--keep", type=Path, help="keep the compiler's dumps in this folder")
    lines.add_argument("--timeout", type=float, default=600, help="seconds for one compilation (600)")
    lines.add_argument("--list", action="store_true", help="list the cases and stop")
    return lines


def selected(parts: Sequence[str]) -> list[Case]:
    """The cases whose name has one of `parts` in it.

    Raises:
        SystemExit: A part is in no name.
    """
    for part in parts:
        if not any(part in name for name in CASES):
            raise SystemExit(f"--case {part}: no such case; --list lists them")
    return [case for name, case in CASES.items() if any(part in name for part in parts)]


def run_case(chip: Chip, kernel: str, case: Case, options: argparse.Namespace) -> Figures:
    """Compile and measure one case.

    Raises:
        RuntimeError: The compilation failed or took too long.
    """
    keep: Path | None = options.keep
    folder = Path(tempfile.mkdtemp(dir=keep, prefix=f"{chip.name}-{kernel}-{case.name.replace('/', '_')}-"))
    try:
        compile_case(chip.name, kernel, case.name, folder, options.peer_path, options.timeout)
        return measure(chip, kernel, case, folder, json.loads((folder / MODULE).read_text()))
    finally:
        if keep is None:
            shutil.rmtree(folder)


def main() -> None:
    """Print one table per chip."""
    options = parser().parse_args()
    cases = selected(options.case)
    if options.list:
        print("\n".join(case.name for case in cases))
        return
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
    figures: list[Figures] = []
    failed = 0
    for chip in (CHIPS[name] for name in options.chip):
        rows: list[Figures] = []
        for case in cases:
            for kernel in options.kernel:
                begin = time.perf_counter()
                try:
                    rows.append(run_case(chip, kernel, case, options))
                    said = f"{rows[-1].microseconds:.1f} µs, {rows[-1].bottleneck}"
                except (RuntimeError, ValueError, FileNotFoundError) as error:
                    failed += 1
                    said = f"failed: {error}"
                print(
                    f"{chip.name} {case.name} {kernel}: {said} [{time.perf_counter() - begin:.0f} s]", file=sys.stderr
                )
                # After each case, so that an interrupted run leaves what it has.
                if options.json is not None:
                    done = [row.as_dict() for row in figures + rows]
                    options.json.write_text(json.dumps(done, indent=1, sort_keys=True) + "\n")
        figures += rows
        print(f"\n{chip.name}\n\n{table(rows)}\n")
    if failed:
        raise SystemExit(f"{failed} could not be measured")


if __name__ == "__main__":
    main()
