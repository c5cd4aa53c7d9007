"""JAX's own ragged paged attention kernel, interpreted, as a second oracle wherever its features allow."""

from collections.abc import Iterator
from dataclasses import replace

import jax
import numpy as np
import pytest

from jaxllm.pallas_kernels.paged_attention.cases import CASES, Case, Inputs, tolerance
from jaxllm.pallas_kernels.paged_attention.inputs import LAYER
from tests.pallas_kernels.paged_attention import jax_kernel
from tests.pallas_kernels.paged_attention.oracle import cached_inputs, run_function
from tests.pallas_kernels.paged_attention.tpu.interpreter import interpret
from tests.thinned import thinned

QUICK = ("mixed", "soft_cap_window", "group_7", "e5m2", "int8")
"""Among them bfloat16, 8 bits, scales, padding and both kinds of mask."""

SLOW = thinned(("long_window", "e4m3"), ("head_256", "group_16", "page_64", "multi_query", "bfloat16", "long"))
"""For the TPU kernels: interpreting both takes ten seconds a case. All of `ALLOWED` passed once (2026-11-21)."""


def _allowed() -> Iterator[Case]:
    """All cases that the kernel computes, those of smaller heads with heads of 128, and their numbers not traced."""
    for case in CASES:
        wide = replace(case, head_size=max(case.head_size, 128), traced=False)
        if jax_kernel.allows(wide):
            yield wide


ALLOWED = {case.name: case for case in _allowed()}


def _check(inputs: Inputs, out: jax.Array, cache: jax.Array, monkeypatch: pytest.MonkeyPatch) -> None:
    case = inputs.case
    expected = jax_kernel.attend(inputs, cache[LAYER], monkeypatch)
    got, wanted = (np.asarray(array[: case.num_tokens]).astype(np.float64) for array in (out, expected))
    assert np.isfinite(wanted).all()
    # Both round: twice the error of one.
    np.testing.assert_allclose(got, wanted, rtol=0, atol=2 * tolerance(case))


@pytest.mark.parametrize("name", QUICK)
def test_cpu_matches_the_kernel_of_jax(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = cached_inputs(ALLOWED[name])
    _check(inputs, *run_function("xla")(inputs), monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_tpu_matches_the_kernel_of_jax(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = cached_inputs(ALLOWED[name])
    _check(inputs, *interpret(inputs, monkeypatch), monkeypatch)
