"""Which implementation multiplies with the matrices of experts."""

from jaxllm.executor.kernels.operation import Kernel, OperationKernels
from jaxllm.models.config import ModelConfig

MOE = OperationKernels[ModelConfig](
    "moe",
    kernels=(Kernel("tpu", platform="tpu"),),
    shape_of=lambda workload: workload.model,
    is_used=lambda model: bool(model.expert_counts),
)
