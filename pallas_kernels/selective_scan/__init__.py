"""State spaces with decays for each channel, as Mamba has them."""

from jaxllm.pallas_kernels.selective_scan.api import selective_scan

__all__ = ["selective_scan"]
