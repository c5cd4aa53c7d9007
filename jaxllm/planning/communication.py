"""What devices that share a model tell each other in a step, and how long it takes at the least.

Every layer adds up twice over all devices, after attention and after the feed-forward layer, and the embedding once:
arrays [T, D] in the type of the activations. In large steps a sum is scattered, and gathered later: the same bytes.
Sampling sends a few numbers per row, which is not counted.
"""

import jax.numpy as jnp

from jaxllm.pallas_kernels.chips import Chip
from jaxllm.planning.links import sum_seconds
from jaxllm.runtime.resolved import ResolvedConfig


def summed_bytes(resolved: ResolvedConfig, tokens: int) -> tuple[int, int]:
    """How many sums over all devices a step of so many tokens makes, and the bytes of each; none on one device."""
    if resolved.num_devices == 1:
        return 0, 0
    model = resolved.model
    return 2 * model.num_layers + 1, tokens * model.hidden_size * jnp.dtype(resolved.dtype).itemsize


def communication_seconds(resolved: ResolvedConfig, chip: Chip, tokens: int) -> float | None:
    """All sums of a step, which nothing else is taken to overlap; None where the chip's links are not known."""
    count, size = summed_bytes(resolved, tokens)
    if not count:
        return 0.0
    return count * sum_seconds(chip, resolved.num_devices, size) if chip.link_bandwidth else None
