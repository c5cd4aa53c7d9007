"""Cases of paged attention on the device beside the reference on the CPU."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxllm.config import EngineConfig
from jaxllm.doctor.result import Context, Outcome
from jaxllm.pallas_kernels.paged_attention import find
from jaxllm.pallas_kernels.paged_attention.cases import CASES, Case, Inputs, make_inputs, tolerance
from jaxllm.pallas_kernels.paged_attention.inputs import LAYER
from jaxllm.runtime.resolved import ResolvedConfig, resolve_config

Result = tuple[jax.Array, jax.Array]
Implementation = Callable[[Inputs], Result]
"""What a case gives: its result, and the cache in the canonical shape."""

SHARE = 0.5
"""Of a stage's time that cases may take; those that are not reached are counted."""

_QUICK: dict[str, str | bool] = {"xla_backend_optimization_level": "0"}


@dataclass(frozen=True)
class CaseResult:
    """`error` is the largest difference from the reference; None with the `reason` where the case did not run."""

    name: str
    limit: float
    error: float | None
    reason: str | None = None

    @property
    def is_wrong(self) -> bool:
        """NaN is wrong too."""
        return self.error is not None and not self.error <= self.limit


def resolve_model(context: Context) -> ResolvedConfig:
    """What an engine of the model would use here."""
    options = {"model": context.settings.model, "load_format": context.settings.load_format}
    return resolve_config(EngineConfig.from_options(options))


def check_cases(context: Context, implementation: Implementation | None = None) -> Outcome:
    """Run the cases with the engine's attention until the time is over; or with `implementation` in its place."""
    end = time.monotonic() + SHARE * context.settings.seconds
    resolved = resolve_model(context)
    name = resolved.attention
    cases, results = list(suited_cases(resolved)), []
    for number, case in enumerate(cases, 1):
        if time.monotonic() > end:
            break
        context.say(f"{name} attention: {case.name} ({number} of {len(cases)})")
        results.append(compare(case, implementation or partial(run_case, name)))
    return _outcome(resolved, len(cases), results)


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


def run_case(implementation: str, inputs: Inputs, *, checks: bool = False) -> Result:
    """The case on the default device; with `checks` of bounds and semaphores, which only `tpu` has."""
    if implementation == "tpu":
        from jaxllm.doctor.tpu_attention import attend_on_tpu

        return jax.jit(partial(attend_on_tpu, checks=checks))(inputs)
    backend = find(implementation)

    def attend(inputs: Inputs) -> Result:
        page_size = inputs.kv_cache.shape[2]
        own = replace(inputs, kv_cache=backend.from_canonical(inputs.kv_cache))
        out, cache = own.call(implementation, jnp.int32(LAYER))
        return out, backend.to_canonical(cache, page_size)

    return jax.jit(attend)(inputs)


def compare(case: Case, run: Implementation) -> CaseResult:
    """Run a case with `run` and with the reference, the latter in float32 on the CPU."""
    inputs, limit = make_inputs(case), allowed_error(case, jax.default_backend())
    try:
        found, cache = jax.device_get(run(inputs))
    except NotImplementedError as refusal:
        return CaseResult(case.name, limit, None, str(refusal))
    wanted, wanted_cache = jax.device_get(_reference(inputs))
    if not case.num_tokens:
        return CaseResult(case.name, limit, 0.0)
    difference = np.abs(found[: case.num_tokens].astype(np.float32) - wanted[: case.num_tokens])
    error = float(np.nan_to_num(difference, nan=np.inf).max())
    # Page 0 belongs to nobody: padding may write it.
    if not np.array_equal(cache[:, 1:].view(np.uint8), wanted_cache[:, 1:].view(np.uint8)):
        return CaseResult(case.name, limit, float("inf"), "the cache differs")
    return CaseResult(case.name, limit, error)


def allowed_error(case: Case, platform: str) -> float:
    """As in the tests. Accelerators may round float32 operands to TF32 or bfloat16, which counts as bfloat16."""
    return tolerance(case if platform == "cpu" else replace(case, dtype="bfloat16"))


def _reference(inputs: Inputs) -> Result:
    wide = replace(inputs, **{name: getattr(inputs, name).astype(jnp.float32) for name in ("q", "k", "v")})
    cpu = jax.local_devices(backend="cpu")[0]
    run = jax.jit(lambda inputs: inputs.call("reference"), compiler_options=_QUICK)
    return run(jax.device_put(wide, cpu))


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
