"""Whether the kernel that multiplies with experts is right on this machine, see `jaxllm.runtime.self_test`."""

import logging
from collections.abc import Callable
from dataclasses import replace

import jax
import numpy as np

from jaxllm.pallas_kernels.grouped_matmul.cases import Case, Inputs, make_inputs
from jaxllm.runtime.resolved import ResolvedConfig
from jaxllm.runtime.self_test import named, unless_known

logger = logging.getLogger(__name__)

_SIZES = (3, 0, 40, 1, 0, 300, 9, 7)
_CASES = {
    dtype: Case("self_test", _SIZES, 640, 384, dtype=dtype, row_dtype=dtype, padding=24, layers=2)
    for dtype in ("bfloat16", "float32")
}
"""Groups that end within registers, within blocks and beyond them, with a depth that is padded."""

_TOLERANCE = 0.1
"""Of sums of 640 products of about 1, in any precision that a matrix unit may have."""

Run = Callable[[Inputs], jax.Array]


def with_tested_experts(resolved: ResolvedConfig, run: Run | None = None) -> ResolvedConfig:
    """`resolved`, with XLA's products where `auto` chose a kernel that is not right here.

    `run` is what multiplies: for tests. Raises `EngineError` for a kernel that hangs.
    """
    if resolved.config.compile.moe_backend != "auto" or resolved.experts == "xla":
        return resolved
    case = _CASES.get(resolved.dtype, _CASES["bfloat16"])
    chosen = run or jax.jit(lambda inputs: inputs.call(resolved.experts))
    kernel = f"products with experts by {resolved.experts!r}"
    problem = unless_known(resolved, kernel, ["experts", resolved.experts, repr(case)], lambda: _problem(case, chosen))
    if problem is None:
        return resolved
    logger.warning(
        "%s failed its self-test on this %s: %s. Serving with 'xla', which is slower",
        kernel,
        resolved.device_kind,
        problem,
    )
    return replace(resolved, experts="xla")


def _problem(case: Case, run: Run) -> str | None:
    """What is wrong beside XLA on the CPU."""
    inputs = make_inputs(case)
    try:
        found = np.asarray(run(inputs))
    except Exception as error:  # noqa: BLE001  Whatever compilers and drivers raise: the engine can do without.
        return named(error)
    cpu = jax.local_devices(backend="cpu")[0]
    wanted = np.asarray(jax.device_put(inputs, cpu).call("reference"))
    wrong = float(np.nan_to_num(np.abs(found - wanted), nan=np.inf).max())
    return f"it is off by {wrong:.1e}, where {_TOLERANCE:.0e} is allowed" if wrong > _TOLERANCE else None
