"""Whether an implementation is right on a case: its result on the device, compared with the reference."""

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from jaxllm.pallas_kernels.latent_attention.backend import LatentOptions, get_latent_backend
from jaxllm.pallas_kernels.latent_attention.cases import LAYER, Case, Inputs, make_inputs, tolerance
from jaxllm.pallas_kernels.paged_attention.check import CaseResult

Result = tuple[jax.Array, jax.Array]
Implementation = Callable[[Inputs], Result]
"""The outcome of a case: its result, and the cache in the canonical shape."""

_QUICK: dict[str, str | bool] = {"xla_backend_optimization_level": "0"}


def run_case(implementation: str, inputs: Inputs, *, checks: bool = False) -> Result:
    """The case on the default device; with `checks` of bounds and semaphores, which only `tpu` has."""
    backend = get_latent_backend(implementation)

    def attend(inputs: Inputs) -> Result:
        sizes, window = inputs.case.sizes, inputs.case.window
        options = LatentOptions(inputs.case.scale, checks=checks, sinks=inputs.sinks, window=window)
        cache = backend.from_canonical(inputs.kv_cache, sizes)
        arrays = inputs.q_latent, inputs.q_rope, inputs.latent, inputs.k_rope, cache
        where = jnp.int32(LAYER), inputs.prepared(implementation), options
        if inputs.index is None:
            out, cache = backend.call(*arrays, *where)
        else:
            assert backend.call_indexed is not None
            out, cache, _ = backend.call_indexed(*arrays, *where, inputs.index)
        return out, backend.to_canonical(cache, sizes)

    return jax.jit(attend)(inputs)


def compare(case: Case, run: Implementation) -> CaseResult:
    """Run a case with `run` and with the reference, the latter in float32 on the CPU."""
    inputs, limit = make_inputs(case), allowed_error(case, jax.default_backend())
    found, cache = jax.device_get(run(inputs))
    wanted, wanted_cache = jax.device_get(_reference(inputs))
    difference = np.abs(found[: case.num_tokens].astype(np.float32) - wanted[: case.num_tokens])
    # Page 0 belongs to nobody: padding may write it.
    if not np.array_equal(cache[:, 1:].view(np.uint8), wanted_cache[:, 1:].view(np.uint8)):
        return CaseResult(case.name, limit, float("inf"), "the cache differs")
    return CaseResult(case.name, limit, float(np.nan_to_num(difference, nan=np.inf).max(initial=0.0)))


def allowed_error(case: Case, platform: str) -> float:
    """As in the tests. Accelerators may round float32 operands to bfloat16, which counts as bfloat16."""
    return tolerance(case if platform == "cpu" else replace(case, dtype="bfloat16"))


def _reference(inputs: Inputs) -> Result:
    names = ("q_latent", "q_rope", "latent", "k_rope")
    wide = replace(inputs, **{name: getattr(inputs, name).astype(jnp.float32) for name in names})
    cpu = jax.local_devices(backend="cpu")[0]
    run = jax.jit(lambda inputs: inputs.call("reference"), compiler_options=_QUICK)
    return run(jax.device_put(wide, cpu))
