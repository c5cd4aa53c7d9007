"""Cases of paged attention on the device beside the reference on the CPU."""

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

from jaxllm.config import EngineConfig
from jaxllm.doctor.result import Context, Outcome
from jaxllm.pallas_kernels.paged_attention.cases import CASES, Case
from jaxllm.pallas_kernels.paged_attention.check import CaseResult, Implementation, compare, run_case
from jaxllm.runtime.resolved import ResolvedConfig, resolve_config

SHARE = 0.5
"""Of a stage's time that cases may take; those that are not reached are counted."""

MOST_WORKERS = 8
"""Cases at a time."""


def resolve_model(context: Context) -> ResolvedConfig:
    """What an engine of the model would use here."""
    options = {"model": context.settings.model, "load_format": context.settings.load_format}
    return resolve_config(EngineConfig.from_options(options))


def check_cases(context: Context, implementation: Implementation | None = None) -> Outcome:
    """Run the cases with the engine's attention until the time is over; or with `implementation` in its place."""
    end = time.monotonic() + SHARE * context.settings.seconds
    resolved = resolve_model(context)
    name, running, results = resolved.attention, set[str](), list[CaseResult]()
    cases = list(suited_cases(resolved))

    def check(case: Case) -> CaseResult | None:
        if time.monotonic() > end:
            return None
        running.add(case.name)
        context.say(f"{name} attention: {', '.join(sorted(running))} ({len(results)} of {len(cases)} done)")
        result = compare(case, implementation or partial(run_case, name))
        running.discard(case.name)
        results.append(result)
        return result

    # Nearly all of the time is compiling, which the compiler for TPUs does for one thread only.
    workers = 1 if resolved.platform == "tpu" else max(1, min(MOST_WORKERS, (os.cpu_count() or 1) // 2))
    with ThreadPoolExecutor(workers) as pool:
        reached = [result for result in pool.map(check, cases) if result is not None]
    return _outcome(resolved, len(cases), reached)


def suited_cases(resolved: ResolvedConfig) -> Iterator[Case]:
    """The cases with the model's heads, pages and type; those that become the same only once."""
    model, seen = resolved.model, set()
    for case in CASES:
        own = replace(
            case,
            num_heads=model.num_heads,
            num_kv_heads=model.num_kv_heads,
            head_size=model.head_size,
            page_size=resolved.page_size,
            dtype=resolved.dtype,
            kv_dtype=None if case.kv_dtype in ("float32", "bfloat16") else case.kv_dtype,
        )
        key = replace(own, name="")
        if key not in seen:
            seen.add(key)
            yield own


def _outcome(resolved: ResolvedConfig, count: int, results: list[CaseResult]) -> Outcome:
    name, model = resolved.attention, resolved.model
    wrong = [result for result in results if result.is_wrong]
    refused = [result for result in results if result.error is None]
    errors = [each.error / each.limit for each in results if each.error is not None and not each.is_wrong]
    heads = f"{model.num_heads} heads of {model.head_size}, {model.num_kv_heads} of keys, {resolved.dtype}"
    right = len(results) - len(wrong) - len(refused)
    summary = (
        f"{name}, {heads}: {right} of {count} cases right, largest error {max(errors, default=0.0):.0%} of allowed"
    )
    summary += f"; {len(refused)} not supported" if refused else ""
    summary += f"; {count - len(results)} not reached, give more --timeout" if len(results) < count else ""
    figures: dict[str, Any] = {
        "implementation": name,
        "num_cases": count,
        "cases": [{"name": each.name, "error": _plain(each.error), "limit": each.limit, "reason": each.reason}
                  for each in results],
    }  # fmt: skip
    if wrong:
        names = ", ".join(f"{each.name} ({each.reason or f'{each.error:.1e}'})" for each in wrong[:8])
        advice = "serve with --attention-backend xla until this is fixed, and send the report"
        return Outcome(f"{summary}; WRONG: {names}", figures, "failed", advice)
    return Outcome(summary, figures)


def _plain(error: float | None) -> float | str | None:
    """JSON has no infinity."""
    return "infinite" if error == float("inf") else error
