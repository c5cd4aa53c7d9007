"""State spaces with one decay for each head, as Mamba-2 has them."""

from jaxllm.pallas_kernels.state_space.api import state_space
from jaxllm.pallas_kernels.state_space.inputs import StateSpaceInputs

__all__ = ["StateSpaceInputs", "state_space"]
