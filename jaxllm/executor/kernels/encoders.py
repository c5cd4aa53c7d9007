"""Which implementation attends in the encoders of images and sound."""

from jaxllm.executor.kernels.operation import Kernel, OperationKernels
from jaxllm.models.config import ModelConfig

MM_ENCODER_ATTENTION = OperationKernels[ModelConfig](
    "mm_encoder_attn",
    kernels=(Kernel("tpu", platform="tpu"),),
    shape_of=lambda workload: workload.model,
    is_used=lambda model: model.tower is not None or model.sound is not None,
)
"""The declaration of an operation's kernels: see `jaxllm.executor.kernels.select`."""
