"""The traffic in a step between devices that share a model, and how long it takes at the least.

Every layer adds up twice over all devices, after attention and after the feed-forward layer, and the embedding once:
arrays [T, D] in the type of the activations. In large steps a sum is scattered, and gathered later: the same bytes.
Sampling sends a few numbers per row, which is not counted. Stages give each other such arrays, one for each step.
"""

import jax.numpy as jnp

from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.models.sharding import token_axis
from jaxllm.pallas_kernels.chips import Chip
from jaxllm.planning.links import Network, sum_seconds


def summed_bytes(resolved: ResolvedConfig, tokens: int) -> tuple[int, int]:
    """How many sums over all devices a step of so many tokens makes, and the bytes of each; none on one device."""
    if resolved.num_devices == 1:
        return 0, 0
    model, stage = resolved.stage_model, resolved.stage
    embeddings = 1 if stage is None or stage.is_first else 0
    return 2 * model.num_layers + embeddings, tokens * model.hidden_size * jnp.dtype(resolved.dtype).itemsize


def communication_seconds(resolved: ResolvedConfig, chip: Chip, tokens: int) -> float | None:
    """All sums of a step, which nothing else is taken to overlap; None where the chip's links are not known."""
    count, size = summed_bytes(resolved, tokens)
    if not count:
        return 0.0
    return count * sum_seconds(chip, resolved.num_devices, size) if chip.link_bandwidth else None


def handover_seconds(earlier: ResolvedConfig, later: ResolvedConfig, chip: Chip, tokens: int) -> float | None:
    """Until a stage has the hidden states of so many tokens from the one before it; None as above.

    Every device gets its own from the one with its number; where they are not split by tokens, that is all of them.
    """
    if not chip.link_bandwidth or earlier.mesh is None or later.mesh is None or chip.platform != "tpu":
        return None
    size = tokens * earlier.model.hidden_size * jnp.dtype(earlier.dtype).itemsize
    count = earlier.num_devices
    devices = (*earlier.mesh.devices.flat, *later.mesh.devices.flat)
    network = Network(chip, [tuple(device.coords) for device in devices])
    share = size if token_axis(earlier.mesh, tokens) is None else size // count
    return network.permute(0.0, share, [(number, count + number) for number in range(count)])
