"""The self-test of the kernel that chooses tokens."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import numpy as np

from jaxllm.executor.kernels.self_test import SelfTest
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.pallas_kernels.sampling import Choice, choose_tokens
from jaxllm.pallas_kernels.sampling.cases import CASES, Case, make_inputs

_MOST_WRONG = 1
"""Rows whose token may differ: another order of sums decides otherwise now and then."""


@dataclass(frozen=True)
class SamplingCase:
    """Rows of logits of a vocabulary."""

    vocab_size: int
    rows: tuple[Case, ...]


def _run(logits: jax.Array, choice: Choice, implementation: str) -> jax.Array:
    return jax.jit(partial(choose_tokens, implementation=implementation))(logits, choice)


def _find_problem(case: SamplingCase, resolved: ResolvedConfig, run: Callable[..., jax.Array]) -> str | None:
    """The difference from XLA on the CPU in words, None if there is none."""
    inputs = make_inputs(case.vocab_size)
    found = np.asarray(run(*inputs, resolved.backend("sampling")))
    cpu = jax.local_devices(backend="cpu")[0]
    wanted = np.asarray(jax.jit(choose_tokens)(*jax.device_put(inputs, cpu)))
    wrong = [row.name for row, one, other in zip(case.rows, found, wanted, strict=True) if one != other]
    return f"wrong tokens for {', '.join(wrong)}" if len(wrong) > _MOST_WRONG else None


TEST = SelfTest(
    "sampling",
    title="token sampling with",
    kernels=("tpu",),
    cases=lambda resolved: [SamplingCase(resolved.model.vocab_size, tuple(CASES))],
    find_problem=_find_problem,
    run=_run,
)
