"""Matrix memories with exponential gates, as xLSTM has them."""

from jaxllm.pallas_kernels.matrix_memory.api import matrix_memory
from jaxllm.pallas_kernels.matrix_memory.inputs import MatrixMemoryInputs

__all__ = ["MatrixMemoryInputs", "matrix_memory"]
