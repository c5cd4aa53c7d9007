"""Which implementation of each operation an engine takes: the one asked for, or the fastest on its devices."""

from collections.abc import Mapping
from typing import Any

from jaxllm.config import CompileOptions
from jaxllm.config.engine_info import KernelChoice, Operation
from jaxllm.errors import ConfigError
from jaxllm.executor.kernels.attention import ATTENTION
from jaxllm.executor.kernels.encoders import MM_ENCODER_ATTENTION
from jaxllm.executor.kernels.linear import LINEAR
from jaxllm.executor.kernels.moe import MOE
from jaxllm.executor.kernels.operation import OperationKernels, Shape, Workload
from jaxllm.executor.kernels.sampling import SAMPLING

OPERATIONS: tuple[OperationKernels[Any], ...] = (ATTENTION, LINEAR, MM_ENCODER_ATTENTION, MOE, SAMPLING)


def select_kernel(operation: OperationKernels[Shape], asked: str, device: Any, shape: Shape) -> str:
    """The implementation asked for, or for 'auto' the fastest that serves the shape on the device.

    Raises:
        ConfigError: the one asked for is of another platform, or cannot serve the shape.
    """
    named = next((kernel for kernel in operation.kernels if kernel.name == asked), None)
    if named is not None and named.platform != device.platform:
        needed = named.platform.upper()
        raise ConfigError(f"{operation.option}={asked!r} needs a {needed}; this is a {device.platform.upper()}")
    operation.check(device.platform, shape)
    if not operation.is_used(shape):
        return "xla"
    if asked == "auto":
        return _fastest(operation, device, shape)
    problem = None if named is None else named.refusal(device, shape)
    if problem is not None:
        raise ConfigError(f"{operation.option}={asked!r} {problem}; omit it, or choose 'xla'")
    return asked


def _fastest(operation: OperationKernels[Shape], device: Any, shape: Shape) -> str:
    """The first kernel that serves the shape, if it is faster than XLA's operation; else 'xla'."""
    for kernel in operation.kernels:
        if kernel.platform == device.platform and kernel.refusal(device, shape) is None:
            return kernel.name if kernel.is_fastest(shape) else "xla"
    return "xla"


def select_kernels(options: CompileOptions, workload: Workload) -> Mapping[Operation, KernelChoice]:
    """A kernel for each operation. Raises `ConfigError` where one that was asked for cannot serve."""
    return {
        each.operation: KernelChoice(
            select_kernel(each, getattr(options, each.option), workload.device, each.shape_of(workload))
        )
        for each in OPERATIONS
    }
