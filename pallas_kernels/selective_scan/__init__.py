"""State spaces with decays for each channel, as Mamba has them."""

from jaxllm.pallas_kernels.selective_scan.api import selective_scan
from jaxllm.pallas_kernels.selective_scan.inputs import SelectiveScanInputs

__all__ = ["SelectiveScanInputs", "selective_scan"]
