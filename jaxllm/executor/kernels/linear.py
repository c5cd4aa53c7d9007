"""Which implementation multiplies with quantised matrices."""

from jaxllm.executor.kernels.operation import Kernel, OperationKernels
from jaxllm.models.config import ModelConfig

LINEAR = OperationKernels[ModelConfig](
    "linear",
    kernels=(Kernel("tpu", platform="tpu"),),
    shape_of=lambda workload: workload.model,
    is_used=lambda model: model.is_quantized,
)
