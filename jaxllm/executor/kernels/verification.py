"""Every kernel of an engine, before it relies on them: see `jaxllm.executor.kernels.self_test`."""

from typing import Any

from jaxllm.executor.kernels.self_test import SelfTest, verify_kernel
from jaxllm.executor.kernels.self_tests import attention, encoders, linear, moe, sampling
from jaxllm.executor.resolved import ResolvedConfig

SELF_TESTS: tuple[SelfTest[Any], ...] = (attention.TEST, moe.TEST, linear.TEST, encoders.TEST, sampling.TEST)


def verify_kernels(resolved: ResolvedConfig, *, samples: bool = True) -> ResolvedConfig:
    """`resolved`, with other implementations where `auto` chose kernels that are not right here.

    An engine that pools does not sample, and needs no test of that. Raises `EngineError` for a kernel that hangs.
    """
    for test in SELF_TESTS:
        if samples or test.operation != "sampling":
            resolved = verify_kernel(test, resolved)
    return resolved
