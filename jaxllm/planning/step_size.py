"""How large a step is, of what it may be by default, on devices that have other things to hold as well."""

from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp

from jaxllm.bundle.manifest import read_manifest
from jaxllm.errors import CapacityError
from jaxllm.executor.memory.capacity import count_pages, draft_bytes, slot_bytes
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.executor.step_size import usual_step_sizes
from jaxllm.planning.memory import MemoryUse, estimate_memory
from jaxllm.planning.target import TargetDevices

STEP_SHARE = 1 / 8
"""Share of the memory besides the weights that a step of the default size may use: the rest is KV cache."""


STATES_SHARE = 1 / 2
"""Share of the remaining cache memory that recurrent states may take for the requests of such a step."""


def with_step_size(resolved: ResolvedConfig, target: TargetDevices) -> tuple[ResolvedConfig, MemoryUse]:
    """The configuration with the largest default that fits, and what it takes of each device.

    It fits if requests of the length that is asked for do, and if it leaves enough for the KV cache. The smallest is
    taken whether it fits or not. What the options say stays.

    Raises `CapacityError` where nobody knows the size of the devices' memory.
    """
    *larger, smallest = _candidates(resolved)
    for each in larger:
        memory = estimate_memory(each, target)
        if _fits(each, memory):
            return each, memory
    return smallest, estimate_memory(smallest, target)


def with_step_size_of_bundle(resolved: ResolvedConfig, folder: str) -> ResolvedConfig:
    """The configuration with the default for which the bundle in `folder` was compiled; unchanged if it is for none.

    Raises `ConfigError` when there is no bundle.
    """
    made_for = read_manifest(Path(folder)).engine
    sizes = made_for.get("max_num_seqs"), made_for.get("max_num_batched_tokens")
    same = (each for each in _candidates(resolved) if (each.max_num_seqs, each.max_num_batched_tokens) == sizes)
    return next(same, resolved)


def _candidates(resolved: ResolvedConfig) -> list[ResolvedConfig]:
    """With each default, the largest first; options that are given are as they are."""
    usual = usual_step_sizes(resolved.platform, "generate")
    sizes = dict.fromkeys(each.chosen(resolved.config.scheduler) for each in usual)
    return [replace(resolved, max_num_seqs=size.requests, max_num_batched_tokens=size.tokens) for size in sizes]


def _fits(resolved: ResolvedConfig, memory: MemoryUse) -> bool:
    taken = memory.state + step_bytes(resolved)
    left = memory.usable - memory.weights - taken
    if taken > STEP_SHARE * (memory.usable - memory.weights):
        return False
    if (slot_bytes(resolved) + draft_bytes(resolved)) * resolved.max_num_seqs > STATES_SHARE * left:
        return False
    try:
        count_pages(resolved, left)
    except CapacityError:
        # A length that was not asked for is shortened instead.
        return resolved.config.model.max_model_len is None
    return True


def step_bytes(resolved: ResolvedConfig) -> int:
    """Temporaries of the largest step on each device, at most: activations of the widest layer, and copies of logits.

    Relative to this estimate for 256 requests and 8,192 tokens, libtpu needs 0.6 for Llama-3.1-8B on a v6e and 0.5 for
    Llama-3.2-1B on a v5e; XLA for GPUs needs 0.9 for Llama-3-8B on an A100.
    """
    model, devices = resolved.model, resolved.num_devices
    wide, copies = (1, 2) if resolved.platform == "tpu" else (2, 4)
    columns = wide * model.intermediate_size // devices + 4 * model.hidden_size
    activations = resolved.max_num_batched_tokens * columns * jnp.dtype(resolved.dtype).itemsize
    return activations + copies * resolved.max_num_seqs * resolved.vocab_size // devices * 4
