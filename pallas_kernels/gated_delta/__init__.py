"""The gated delta rule: linear attention with a state for each head."""

from jaxllm.pallas_kernels.gated_delta.api import gated_delta

__all__ = ["gated_delta"]
