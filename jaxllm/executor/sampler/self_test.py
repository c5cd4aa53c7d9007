"""Whether the kernel that chooses tokens is right on this machine, see `jaxllm.executor.kernels.self_test`."""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import jax
import numpy as np

from jaxllm.executor.kernels.self_test import named, unless_known
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.pallas_kernels.sampling import Choice, choose_tokens
from jaxllm.pallas_kernels.sampling.cases import CASES, make_inputs

logger = logging.getLogger(__name__)

_MOST_WRONG = 1
"""Rows whose token may differ: another order of sums decides otherwise now and then."""

Run = Callable[[jax.Array, Choice], jax.Array]


def verify_sampling(resolved: ResolvedConfig, run: Run | None = None) -> ResolvedConfig:
    """`resolved`, with XLA's sampling where `auto` chose a kernel that is not right here.

    `run` is what chooses tokens: for tests. Raises `EngineError` for a kernel that hangs.
    """
    if resolved.config.compile.sampling_backend != "auto" or resolved.sampling == "xla":
        return resolved
    chosen = run or jax.jit(partial(choose_tokens, implementation=resolved.sampling))
    key = ["sampling", resolved.sampling, resolved.model.vocab_size, [repr(case) for case in CASES]]
    kernel = f"choosing tokens with {resolved.sampling!r}"
    problem = unless_known(
        resolved, kernel, key, lambda: _problem(chosen, resolved.model.vocab_size), "--sampling-backend"
    )
    if problem is None:
        return resolved
    logger.warning(
        "%s failed its self-test on this %s: %s. Serving with 'xla', which is slower",
        kernel,
        resolved.device_kind,
        problem,
    )
    return replace(resolved, sampling="xla", sampling_problem=f"{resolved.sampling}: {problem}")


def _problem(run: Run, vocab_size: int) -> str | None:
    """What is wrong beside XLA on the CPU."""
    inputs = make_inputs(vocab_size)
    try:
        found = np.asarray(run(*inputs))
    except Exception as error:  # noqa: BLE001  Whatever compilers and drivers raise: the engine can do without.
        return named(error)
    cpu = jax.local_devices(backend="cpu")[0]
    wanted = np.asarray(jax.jit(choose_tokens)(*jax.device_put(inputs, cpu)))
    wrong = [case.name for case, one, other in zip(CASES, found, wanted, strict=True) if one != other]
    return f"other tokens for {', '.join(wrong)}" if len(wrong) > _MOST_WRONG else None
