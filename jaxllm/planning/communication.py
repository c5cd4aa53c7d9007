"""What devices that share a model tell each other in a step, and how long it takes at the least.

Every layer adds up twice over all devices, after attention and after the feed-forward layer, and the embedding once:
arrays [T, D] in the type of the activations. Sampling sends a few numbers per row, which is not counted.
"""

import jax.numpy as jnp

from jaxllm.pallas_kernels.chips import Chip
from jaxllm.runtime.resolved import ResolvedConfig

HOP_SECONDS = 1e-6
"""What a hop to a neighbour takes beside the bytes: "How to Scale Your Model", chapter 3, "typically around 1us"."""


def summed_bytes(resolved: ResolvedConfig, tokens: int) -> tuple[int, int]:
    """How many sums over all devices a step of so many tokens makes, and the bytes of each; none on one device."""
    if resolved.num_devices == 1:
        return 0, 0
    model = resolved.model
    return 2 * model.num_layers + 1, tokens * model.hidden_size * jnp.dtype(resolved.dtype).itemsize


def sum_seconds(chip: Chip, devices: int, size: int) -> float:
    """One sum of `size` bytes over a ring of devices, in both directions at once.

    First each device gets the sum of its part, then all get all parts; each of the two is bound by the bytes on a link
    or, if they are few, by the hops halfway around (chapter 3 of "How to Scale Your Model").
    """
    links = min(devices - 1, 2)
    bytes_on_link = size * (devices - 1) / devices / links
    return 2 * max(bytes_on_link / chip.link_bandwidth, devices / 2 * HOP_SECONDS)


def communication_seconds(resolved: ResolvedConfig, chip: Chip, tokens: int) -> float | None:
    """All sums of a step, which nothing else is taken to overlap; None where the chip's links are not known."""
    count, size = summed_bytes(resolved, tokens)
    if not count:
        return 0.0
    return count * sum_seconds(chip, resolved.num_devices, size) if chip.link_bandwidth else None
