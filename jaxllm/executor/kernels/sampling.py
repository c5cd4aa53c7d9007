"""Which implementation chooses tokens."""

from typing import Any

from jaxllm.executor.kernels.operation import Kernel, OperationKernels


def _tpu_refusal(device: Any, vocab_size: int) -> str | None:
    # Only on TPUs: other machines need not load the compiler.
    from jaxllm.pallas_kernels.sampling.tpu.sampling import fits

    if fits(device, vocab_size):
        return None
    return f"needs more vector memory than this {device.device_kind} has for a vocabulary of {vocab_size}"


SAMPLING = OperationKernels[int](
    "sampling",
    kernels=(Kernel("tpu", platform="tpu", refusal=_tpu_refusal),),
    shape_of=lambda workload: workload.model.vocab_size,
)
