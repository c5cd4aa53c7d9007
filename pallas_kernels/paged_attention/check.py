"""Whether an implementation is right on a case: its result on the device, compared with the reference."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxllm.pallas_kernels.paged_attention.backend import get_backend
from jaxllm.pallas_kernels.paged_attention.cases import Case, make_inputs, tolerance
from jaxllm.pallas_kernels.paged_attention.inputs import LAYER, Inputs

Result = tuple[jax.Array, jax.Array]
Implementation = Callable[[Inputs], Result]
"""The outcome of a case: its result, and the cache in the canonical shape."""

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


def run_case(implementation: str, inputs: Inputs, *, checks: bool = False) -> Result:
    """The case on the default device; with `checks` of bounds and semaphores, which only `tpu` has."""
    if implementation == "tpu":
        from jaxllm.pallas_kernels.paged_attention.tpu.canonical import attend_on_tpu

        return jax.jit(partial(attend_on_tpu, checks=checks))(inputs)
    backend = get_backend(implementation)

    def attend(inputs: Inputs) -> Result:
        page_size = inputs.kv_cache.shape[2]
        own = replace(inputs, kv_cache=backend.from_canonical(inputs.kv_cache, inputs.case.scale_bytes))
        out, cache = own.call(implementation, jnp.int32(LAYER))
        return out, backend.to_canonical(cache, page_size, inputs.case.scale_bytes)

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
