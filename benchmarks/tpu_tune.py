"""Block sizes of paged attention for a TPU: by the static model where none is there, or measured on the one that is.

For each shape of heads and each kernel (decode, prefill) block sizes are tried, starting from those in use: each is
compiled for the chip and its program run as docs/kernels.md says. What is best goes to
pallas_kernels/tuned/<chip>/paged_attention.json, with the share of the roofline that it reaches; entries of other
shapes stay. A chip takes a few minutes of one core.

With --measure the kernels run on this machine's TPU, and what is fastest goes to the user's cache
(~/.cache/jaxllm/tuned), where engines find it until the chip, the libraries or the kernels are others. On a CPU it runs
small cases in Pallas's interpreter, which shows that all of it works, and nothing else.

    scripts/bench tpu_tune --chip v6e
    scripts/bench tpu_tune --chip v5e --model qwen3-0.6b --page-size 64 --tries 12
    scripts/bench tpu_tune --chip v6e --tries 1            only look at what is in use
    scripts/bench tpu_tune --measure --model llama-3-8b --page-size 64
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.tpu.cases import MODELS, Case, decode_case, prefill_case
from benchmarks.tpu.search import search
from benchmarks.tpu.worker import Worker, key_of
from jaxllm.pallas_kernels.chips import CHIPS, chip_of
from jaxllm.pallas_kernels.measured import store_measured
from jaxllm.pallas_kernels.paged_attention.tpu.common import Blocks
from jaxllm.pallas_kernels.tpu_common.constants import LANES

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
    where = lines.add_mutually_exclusive_group(required=True)
    where.add_argument("--chip", choices=tpus, help="chip to compile for")
    where.add_argument("--measure", action="store_true", help="take times on the TPU of this machine")
    # Heads that share rows are to the kernels what they are together, and so are their block sizes.
    whole = [name for name, model in MODELS.items() if model.head_size % LANES == 0]
    lines.add_argument("--model", nargs="+", choices=whole, default=SHAPES, help="whose heads (all shapes)")
    lines.add_argument("--page-size", nargs="+", type=int, default=PAGE_SIZES, help="tokens per page (64 16)")
    lines.add_argument("--tries", type=int, default=6, help="compilations per kernel and shape, at most (6)")
    lines.add_argument("--timeout", type=float, default=240, help="seconds for one compilation (240)")
    lines.add_argument("--output", type=Path, help="file to write (see above)")
    return lines


def main() -> None:
    """Tune every shape asked for, and keep what was found after each."""
    options = parser().parse_args()
    command = " ".join(["scripts/bench tpu_tune", *sys.argv[1:]])
    with closing(Worker(options.chip, options.timeout)) as worker:
        kind = CHIPS[options.chip].device_kind if options.chip else worker.device_kind()
        if not kind.startswith("TPU"):
            if kind != "cpu":
                raise SystemExit(f"--measure: this is for TPUs, and here is a {kind}; see scripts/bench gpu_tune")
            print("no TPU is here: small cases in an interpreter, whose times mean nothing", file=sys.stderr)
        output = options.output
        if options.chip and output is None:
            output = ROOT / "pallas_kernels" / "tuned" / options.chip / "paged_attention.json"
        for name in options.model:
            for entry in _tune_model(worker, kind, name, options.page_size, options.tries):
                if output is None:
                    store_measured("paged_attention", kind, {**entry, "command": command})
                else:
                    _write(output, {**entry, "command": command})


def _tune_model(
    worker: Worker, kind: str, name: str, page_sizes: Sequence[int], tries: int
) -> Iterator[dict[str, Any]]:
    """The entries of a model's heads."""
    begun: dict[str, Blocks] = {}
    for page_size in page_sizes:
        for case in _cases(kind, name, page_size):
            kernel = "decode" if case.is_decode else "prefill"
            start = begun.get(kernel) or worker.blocks_in_use(case, kernel)
            # Decode cuts contexts into the chunks of prefill.
            chunk = begun.get("prefill", start).chunk
            start = replace(start, chunk=chunk, keys=max(start.keys, chunk))
            # Another page size hardly changes what is best: what was found is only checked.
            begun[kernel], entry = _tune(worker, kind, kernel, case, start, 1 if kernel in begun else tries)
            yield entry


def _cases(kind: str, model: str, page_size: int) -> tuple[Case, Case]:
    """Prefill, and decode; of a size for an interpreter where no TPU is."""
    if not kind.startswith("TPU"):
        return prefill_case(model, 1, 64, 64, page_size), decode_case(model, 2, 256, page_size)
    return prefill_case(model, 1, 2048, 2048, page_size), decode_case(model, 64, 1024, page_size)


def _tune(
    worker: Worker, kind: str, kernel: str, case: Case, start: Blocks, tries: int
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
    chip = chip_of(kind)
    share = case.least_seconds(chip) * 1e6 / microseconds if chip else None
    print(
        f"{kind} {case.name}: {microseconds:.1f} µs, {f'{share:.1%}' if share else '?'} of the roofline with {best} "
        f"[{count} tried, {time.perf_counter() - begin:.0f} s]",
        file=sys.stderr,
    )
    key = key_of(kernel, case.model, case.page_size)
    entry = {"key": key, "blocks": asdict(best), "case": case.name, "microseconds": round(microseconds, 1)}
    return best, entry | ({"share": round(share, 3)} if share else {})


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
