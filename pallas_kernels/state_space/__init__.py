"""State spaces with one decay for each head, as Mamba-2 has them."""

from jaxllm.pallas_kernels.state_space.api import state_space

__all__ = ["state_space"]
