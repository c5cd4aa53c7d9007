"""Cases of paged or latent attention on the device compared with the reference on the CPU."""

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

from jaxllm.config import EngineConfig
from jaxllm.doctor.latent_cases import suited_latent_cases
from jaxllm.doctor.result import Context, Outcome
from jaxllm.executor.resolve import resolve_config
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.pallas_kernels.latent_attention import check as latent_check
from jaxllm.pallas_kernels.paged_attention.cases import CASES, Case
from jaxllm.pallas_kernels.paged_attention.check import CaseResult, Result, compare, run_case

SHARE = 0.5
"""Share of a stage's time that cases may take; those not reached are counted."""

MOST_WORKERS = 8
"""Cases at a time."""


def resolve_model(context: Context) -> ResolvedConfig:
    """The choices of an engine of the model here."""
    options = {"model": context.settings.model, "load_format": context.settings.load_format}
    return resolve_config(EngineConfig.from_options(options))


@dataclass(frozen=True)
class Check:
    """One case, and what compares it."""

    name: str
    run: Callable[[], CaseResult]


def checks_of(
    resolved: ResolvedConfig, *, checks: bool = False, implementation: Callable[..., Result] | None = None
) -> list[Check]:
    """The cases with the engine's attention, or with one that is called like `run_case` in its place.

    `checks` turns on those that kernels leave out.
    """
    if resolved.model.latent is not None:
        run = partial(implementation or latent_check.run_case, resolved.backend("attention"), checks=checks)
        return [Check(case.name, partial(latent_check.compare, case, run)) for case in suited_latent_cases(resolved)]
    run = partial(implementation or run_case, resolved.forward.attention, checks=checks)
    return [Check(case.name, partial(compare, case, run)) for case in suited_cases(resolved)]


def check_cases(context: Context, resolved: ResolvedConfig, *, checks: bool = False) -> Outcome:
    """Run the cases with the engine's attention until the time is over; for `checks` see `checks_of`."""
    end = time.monotonic() + SHARE * context.settings.seconds
    name, running, results = resolved.forward.attention, set[str](), list[CaseResult]()
    cases = checks_of(resolved, checks=checks)

    def check(case: Check) -> CaseResult | None:
        if time.monotonic() > end:
            return None
        running.add(case.name)
        context.say(f"{name} attention: {', '.join(sorted(running))} ({len(results)} of {len(cases)} done)")
        result = case.run()
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
    for case, (heads, kv_heads, size) in product(CASES, model.attention_heads):
        own = replace(
            case,
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_size=size,
            page_size=resolved.page_size,
            dtype=resolved.dtype,
            kv_dtype=None if case.kv_dtype in ("float32", "bfloat16") else case.kv_dtype,
        )
        key = replace(own, name="")
        if key not in seen:
            seen.add(key)
            yield own


def _outcome(resolved: ResolvedConfig, count: int, results: list[CaseResult]) -> Outcome:
    name, model = resolved.forward.attention, resolved.model
    wrong = [result for result in results if result.is_wrong]
    refused = [result for result in results if result.error is None]
    errors = [each.error / each.limit for each in results if each.error is not None and not each.is_wrong]
    kinds = " and ".join(f"{many} heads of {size}, {few} of keys" for many, few, size in model.attention_heads)
    if model.latent is not None:
        kinds = f"{model.num_heads} heads, latents of {model.latent.rank} + {model.latent.rope_size}"
    heads = f"{kinds}, {resolved.dtype}"
    right = len(results) - len(wrong) - len(refused)
    summary = (
        f"{name}, {heads}: {right} of {count} cases correct, largest error {max(errors, default=0.0):.0%} of the "
        "allowed error"
    )
    summary += f"; {len(refused)} not supported" if refused else ""
    summary += f"; {count - len(results)} not reached; raise --timeout" if len(results) < count else ""
    figures: dict[str, Any] = {
        "implementation": name,
        "num_cases": count,
        "cases": [{"name": each.name, "error": _plain(each.error), "limit": each.limit, "reason": each.reason}
                  for each in results],
    }  # fmt: skip
    if wrong:
        names = ", ".join(f"{each.name} ({each.reason or f'{each.error:.1e}'})" for each in wrong[:8])
        advice = "serve with --attention-backend xla until this is fixed, and send us the report"
        return Outcome(f"{summary}; WRONG: {names}", figures, "failed", advice)
    return Outcome(summary, figures)


def _plain(error: float | None) -> float | str | None:
    """JSON has no infinity."""
    return "infinite" if error == float("inf") else error
