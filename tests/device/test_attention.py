"""Every case of paged attention on the device, in all implementations that it runs, compared with the reference on
the CPU.
"""

from dataclasses import replace
from functools import partial

import pytest

from jaxllm.pallas_kernels.paged_attention.cases import CASES, Case
from jaxllm.pallas_kernels.paged_attention.check import compare, run_case

pytestmark = pytest.mark.device


@pytest.mark.parametrize("implementation", ["xla", "own", "triton"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case: Case, implementation: str, platform: str) -> None:
    name = platform if implementation == "own" else implementation
    if name == "triton" and platform != "gpu":
        pytest.skip("a kernel for GPUs")
    if name in ("gpu", "triton"):
        # The kernels take 16 bits.
        kv_dtype = None if case.kv_dtype == "float32" else case.kv_dtype
        case = replace(case, dtype="bfloat16", kv_dtype=kv_dtype)
    result = compare(case, partial(run_case, name))
    if result.error is None:
        pytest.skip(str(result.reason))
    assert not result.is_wrong, f"{result.error:.2e} of {result.limit:.0e} ({result.reason or 'the result differs'})"
