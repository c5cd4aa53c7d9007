"""Products of rows with the matrix of their group, as a mixture of experts has them."""

from jaxllm.pallas_kernels.grouped_matmul.api import choose_grouped_layout, grouped_matmul

__all__ = ["choose_grouped_layout", "grouped_matmul"]
