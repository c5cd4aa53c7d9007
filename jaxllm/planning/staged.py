"""The plan of an engine in stages: each stage as an engine of its own has it, and all of them together."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from jaxllm.errors import CapacityError
from jaxllm.executor.compile.buckets import Bucket
from jaxllm.executor.memory.capacity import count_pages, shortened, with_slots
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.pallas_kernels.chips import Chip
from jaxllm.planning.communication import handover_seconds
from jaxllm.planning.memory import CompiledProgram, MemoryUse, capacity_problem
from jaxllm.planning.roofline import StepEstimate


def check_fits(memories: Sequence[MemoryUse]) -> None:
    """Raise `CapacityError`, naming the stage if there are several, where one has no room for a KV cache."""
    for number, memory in enumerate(memories):
        if memory.cache_budget(None) <= 0:
            raise CapacityError((f"stage {number}: " if len(memories) > 1 else "") + capacity_problem(memory))


def fullest(memories: Sequence[MemoryUse], largest: Sequence[CompiledProgram | None]) -> int:
    """The number of the stage whose KV cache holds the fewest pages, besides the largest steps if all are compiled."""
    if len(memories) == 1:
        return 0
    if None in largest:
        largest = [None] * len(memories)
    room = [memory.cache_budget(step) / memory.page for memory, step in zip(memories, largest, strict=True)]
    return room.index(min(room))


def sized(resolved: ResolvedConfig, free: Sequence[int]) -> tuple[ResolvedConfig, int]:
    """The configuration with its snapshots and length, and its KV pages, for so many bytes of each stage's devices.

    Raises `CapacityError`.
    """
    if resolved.platform == "cpu" or not resolved.stages:
        # Virtual devices share one memory, which all layers' pages take of.
        least = min(free)
        resolved = shortened(with_slots(resolved, least), least)
        return resolved, count_pages(resolved, least)
    parts = zip(resolved.stage_configs, free, strict=True)
    resolved = replace(resolved, max_model_len=min(shortened(part, own).max_model_len for part, own in parts))
    return resolved, min(count_pages(part, own) for part, own in zip(resolved.stage_configs, free, strict=True))


def combine_stages(
    resolved: ResolvedConfig, chip: Chip | None, bucket: Bucket, stages: Sequence[StepEstimate | None]
) -> StepEstimate | None:
    """A step of all stages, from what it takes in each.

    As many steps are under way as there are stages, so one ends as often as the slowest stage is done with one.
    """
    known = [stage for stage in stages if stage is not None]
    if chip is None or len(known) < len(stages):
        return None
    parts = resolved.stage_configs
    handovers = [handover_seconds(*pair, chip, bucket.tokens) for pair in pairwise(parts)]
    sent = [*handovers, *(stage.communication for stage in known)]
    slowest = max(known, key=lambda stage: stage.seconds)
    tokens = bucket.tokens
    if bucket.tokens <= bucket.rows:
        # A request that decodes is in one of the steps under way.
        tokens = min(tokens, -(-resolved.max_num_seqs // len(known)))
    return StepEstimate(
        work=slowest.work,
        seconds=sum(stage.seconds for stage in known) + sum(each or 0.0 for each in handovers),
        tokens_per_second=tokens / slowest.seconds,
        bound=slowest.bound,
        matrices=sum(stage.matrices for stage in known),
        attention=sum(stage.attention for stage in known),
        communication=None if None in sent else sum(each or 0.0 for each in sent),
        attention_share=slowest.attention_share,
        interval=slowest.seconds,
    )
