"""The gated delta rule: linear attention with a state for each head."""

from jaxllm.pallas_kernels.gated_delta.api import gated_delta
from jaxllm.pallas_kernels.gated_delta.inputs import GatedDeltaInputs

__all__ = ["GatedDeltaInputs", "gated_delta"]
