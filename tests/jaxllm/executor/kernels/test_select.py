"""Every operation has a declaration, an option and a self-test."""

from typing import get_args

from jaxllm.config import CompileOptions
from jaxllm.config.engine_info import Operation
from jaxllm.executor.kernels.select import OPERATIONS
from jaxllm.executor.kernels.verification import SELF_TESTS


def test_every_operation_is_declared_once() -> None:
    names = sorted(get_args(Operation))
    assert sorted(each.operation for each in OPERATIONS) == names
    assert sorted(each.operation for each in SELF_TESTS) == names


def test_every_kernel_can_be_asked_for() -> None:
    options = CompileOptions.__annotations__
    for operation in OPERATIONS:
        names = {kernel.name for kernel in operation.kernels}
        assert names | {"auto", "xla"} <= set(get_args(options[operation.option])), operation.option


def test_what_auto_takes_on_accelerators_is_tested() -> None:
    tested = {test.operation: set(test.kernels) for test in SELF_TESTS}
    for operation in OPERATIONS:
        assert {kernel.name for kernel in operation.kernels if kernel.platform != "cpu"} == tested[operation.operation]
