"""Stage `executables`: whether a second start reads what the first one compiled, and answers the same."""

from pathlib import Path

import msgspec

from jaxllm.doctor.engine_run import Answers, engine_answers
from jaxllm.doctor.greedy import CACHE, FIRST
from jaxllm.doctor.result import Context, Outcome
from jaxllm.executor.compile.executables import ENGINES


def run(context: Context) -> Outcome:
    """Start an engine again, or twice where no stage has done so before."""
    cache, known = context.scratch / CACHE, context.scratch / FIRST
    if known.exists():
        first = msgspec.json.decode(known.read_bytes(), type=Answers)
    else:
        context.say("first start, which compiles")
        first = engine_answers(context, {"tensor_parallel_size": 1}, cache)
    before = _files(cache / ENGINES)
    size = sum(path.stat().st_size for path in before)
    context.say(f"second start, with {len(before)} cached executables")
    second = engine_answers(context, {"tensor_parallel_size": 1}, cache)
    again = _files(cache / ENGINES) - before
    figures = {
        "first_start_seconds": first.start_seconds,
        "second_start_seconds": second.start_seconds,
        "executables": len(before),
        "bytes": size,
        "compiled_again": sorted(path.name for path in again),
        "warnings": second.warnings,
    }
    summary = (
        f"{len(before)} executables, {size / 2**20:.1f} MiB; first start {first.start_seconds:.1f} s, "
        f"second {second.start_seconds:.1f} s"
    )
    without = 'serve with --compilation-cache-dir "" until this is fixed, and send us the report'
    if first.tokens != second.tokens:
        return Outcome(f"{summary}; the second engine gives different answers", figures, "failed", without)
    if not before:
        return Outcome(f"{summary}; nothing was cached", figures, "slow", "every start compiles: send us the report")
    if again or second.warnings:
        trouble = "; ".join(second.warnings[:2]) or f"{len(again)} were compiled again"
        return Outcome(f"{summary}; {trouble}", figures, "slow", "every start compiles: send us the report")
    return Outcome(summary, figures)


def _files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}
