"""Block sizes of paged attention for a TPU that is not there, chosen by the static model and written as tuned ones.

For each shape of heads and each kernel (decode, prefill) block sizes are tried, starting from those in use: each is
compiled for the chip and its program run as docs/kernels.md says. What is best goes to
pallas_kernels/tuned/<chip>/paged_attention.json, with the share of the roofline that it reaches; entries of other
shapes stay. A chip takes a few minutes of one core.

    scripts/bench tpu_tune --chip v6e
    scripts/bench tpu_tune --chip v5e --model qwen3-0.6b --page-size 64 --tries 12
    scripts/bench tpu_tune --chip v6e --tries 1            only measure what is in use
"""

import argparse
import json
import sys
import time
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.tpu.cases import MODELS, Case, decode_case, prefill_case
from benchmarks.tpu.search import search
from benchmarks.tpu.worker import Worker, key_of
from jaxllm.pallas_kernels.chips import CHIPS, Chip
from jaxllm.pallas_kernels.paged_attention.tpu.common import Blocks

PAGE_SIZES = (64, 16)
SHAPES = ("llama-3-8b", "llama-3-70b-tp8", "qwen3-0.6b", "qwen3-30b-a3b")
"""Other models of the list have the heads of one of these."""

MOST_SCORES = 1 << 21
"""Scores computed together. With twice as many the compiler took minutes, and every step would wait for that."""

ROOT = Path(__file__).parent.parent


def parser() -> argparse.ArgumentParser:
    """The command line."""
    lines = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tpus = [chip.name for chip in CHIPS.values() if chip.platform == "tpu"]
    lines.add_argument("--chip", choices=tpus, required=True, help="chip to compile for")
    lines.add_argument("--model", nargs="+", choices=MODELS, default=SHAPES, help="whose heads (all shapes)")
    lines.add_argument("--page-size", nargs="+", type=int, default=PAGE_SIZES, help="tokens per page (64 16)")
    lines.add_argument("--tries", type=int, default=6, help="compilations per kernel and shape, at most (6)")
    lines.add_argument("--timeout", type=float, default=240, help="seconds for one compilation (240)")
    lines.add_argument("--output", type=Path, help="file to write (pallas_kernels/tuned/CHIP/paged_attention.json)")
    return lines


def main() -> None:
    """Tune every shape asked for, and write the file after each."""
    options = parser().parse_args()
    chip = CHIPS[options.chip]
    output = options.output or ROOT / "pallas_kernels" / "tuned" / chip.name / "paged_attention.json"
    command = " ".join(["scripts/bench tpu_tune", *sys.argv[1:]])
    with closing(Worker(chip.name, options.timeout)) as worker:
        for name in options.model:
            begun: dict[str, Blocks] = {}
            for page_size in options.page_size:
                for case in (prefill_case(name, 1, 2048, 2048, page_size), decode_case(name, 64, 1024, page_size)):
                    kernel = "decode" if case.is_decode else "prefill"
                    # Another page size hardly changes what is best: what was found is only checked.
                    tries = 1 if kernel in begun else options.tries
                    start = begun.get(kernel) or worker.blocks_in_use(case, kernel)
                    # Decode cuts contexts into the chunks of prefill.
                    chunk = begun.get("prefill", start).chunk
                    start = replace(start, chunk=chunk, keys=max(start.keys, chunk))
                    begun[kernel], entry = _tune(worker, chip, kernel, case, start, tries)
                    _write(output, {**entry, "command": command})


def _tune(
    worker: Worker, chip: Chip, kernel: str, case: Case, start: Blocks, tries: int
) -> tuple[Blocks, dict[str, Any]]:
    """The best blocks found from `start`, and their entry of the file."""
    begin, count = time.perf_counter(), 0
    group = case.model.num_heads // case.model.num_kv_heads

    def cost(blocks: Blocks) -> float | None:
        nonlocal count
        if blocks.queries * group * blocks.chunk > MOST_SCORES:
            return None
        count += 1
        try:
            return worker.microseconds(case, kernel, blocks)
        except RuntimeError as error:
            print(f"  {blocks}: {error}", file=sys.stderr)
            return None

    best, microseconds = search(kernel, start, case.page_size, cost, tries)
    share = case.least_seconds(chip) * 1e6 / microseconds
    print(
        f"{chip.name} {case.name}: {microseconds:.1f} µs, {share:.1%} of the roofline with {best} "
        f"[{count} tried, {time.perf_counter() - begin:.0f} s]",
        file=sys.stderr,
    )
    key = key_of(kernel, case.model, case.page_size)
    return best, {"key": key, "blocks": asdict(best), "case": case.name, "share": round(share, 3)}


def _write(file: Path, entry: dict[str, Any]) -> None:
    """Put an entry in, in place of one with its key."""
    entries = json.loads(file.read_text())["entries"] if file.exists() else []
    entries = [other for other in entries if other["key"] != entry["key"]] + [entry]
    entries.sort(key=lambda other: json.dumps(other["key"]))
    file.parent.mkdir(parents=True, exist_ok=True)
    # An entry per line, so that a change shows as a change of lines.
    lines = ",\n".join(f"    {json.dumps(other)}" for other in entries)
    file.write_text(f'{{\n  "entries": [\n{lines}\n  ]\n}}\n')


if __name__ == "__main__":
    main()
