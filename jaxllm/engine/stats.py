"""The load of an engine after a step."""

from collections.abc import Collection
from functools import reduce
from itertools import chain

import msgspec
from msgspec.structs import replace

from jaxllm.kv.lifetimes import PageLife
from jaxllm.kv.tiers.counts import NO_OFFLOAD, OffloadCounts
from jaxllm.kv.tiers.transfer_counts import NO_TRANSFER, TransferCounts
from jaxllm.speculation.statistics import DraftCounts

NO_DRAFTS = DraftCounts()
Amounts = tuple[float, float, float]
"""Operations, bytes read and bytes written, by each device."""
NO_WORK: Amounts = (0.0, 0.0, 0.0)


class StepStats(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """State after a step, what happened in it, and totals since the engine started.

    State: `num_running` and `num_waiting` requests with and without a slot, `num_deferred` of the latter until their
    grammar is compiled; `kv_usage`, share of the KV pages that running requests hold, 0 to 1; `num_snapshots` of
    recurrent states that prefixes can be found with. For the step, all 0 when there was nothing to compute: `num_rows`
    requests and `num_tokens` tokens computed, in a compiled shape of `bucket_tokens` tokens, within `step_seconds` from
    scheduling to outputs. Totals: `prefix_queries` and `prefix_hits`, prompt tokens looked up and found in the prefix
    cache; `num_preemptions`; `num_compilations` after warm-up; `stage_seconds` that each of several stages has worked.
    `num_steps` is 1, 0 when there was nothing to compute, or how many steps are `merged` into this. `num_last` tokens
    of the step were the last of their sequences, and are never computed with; `preemptions` has how often each of those
    that ended was preempted. `merged_shapes` is for `shapes`. For the engine: the `sleep_level` (0: awake), whether it
    `is_paused`, how often its weights were replaced, and why they cannot be used, if that is so. `drafts` are totals of
    speculative decoding, `offload` those of copies of pages on the host, and `transfer` those of pages of other
    engines. Of adapters: names of those that requests run with (`running_loras`) and wait for (`waiting_loras`, some of
    them where they are many), and totals: how many were read from folders, and written to slots on the devices. Images
    that requests asked for (`image_queries`), and those of them that the devices held already (`image_hits`), are
    totals as well, and so are batches of events of the prefix cache that were never published
    (`num_kv_events_dropped`). Of the step, where they are measured: the `work` of each device (operations, bytes read,
    bytes written), and the `page_lives` that ended with it.
    """

    num_running: int = 0
    num_waiting: int = 0
    kv_usage: float = 0.0
    num_rows: int = 0
    num_tokens: int = 0
    bucket_tokens: int = 0
    step_seconds: float = 0.0
    prefix_queries: int = 0
    prefix_hits: int = 0
    num_preemptions: int = 0
    num_compilations: int = 0
    num_steps: int = 0
    num_deferred: int = 0
    num_last: int = 0
    preemptions: tuple[int, ...] = ()
    merged_shapes: tuple[tuple[int, int, float], ...] = ()
    num_snapshots: int = 0
    sleep_level: int = 0
    is_paused: bool = False
    weights_version: int = 0
    weights_problem: str = ""
    stage_seconds: tuple[float, ...] = ()
    drafts: DraftCounts = NO_DRAFTS
    running_loras: tuple[str, ...] = ()
    waiting_loras: tuple[str, ...] = ()
    num_lora_reads: int = 0
    num_lora_writes: int = 0
    image_queries: int = 0
    image_hits: int = 0
    work: Amounts = NO_WORK
    page_lives: tuple[PageLife, ...] = ()
    num_kv_events_dropped: int = 0
    offload: OffloadCounts = NO_OFFLOAD
    transfer: TransferCounts = NO_TRANSFER

    def shapes(self) -> tuple[tuple[int, int, float], ...]:
        """For each compiled shape that steps ran in: its tokens, the number of steps, and their seconds together."""
        if self.merged_shapes or not self.num_steps:
            return self.merged_shapes
        return ((self.bucket_tokens, self.num_steps, self.step_seconds),)

    @property
    def halted(self) -> str:
        """Why nothing is computed, and what to do; empty where that is not so."""
        if self.weights_problem:
            return self.weights_problem
        if self.sleep_level:
            return f"the engine is asleep (level {self.sleep_level}): wake it up first"
        return "the engine is paused: resume it first" if self.is_paused else ""

    def merged(self, then: "StepStats") -> "StepStats":
        """This and the following step as one: what happened adds up, everything else is as it was at the end."""
        return replace(
            then,
            num_steps=self.num_steps + then.num_steps,
            num_rows=self.num_rows + then.num_rows,
            num_tokens=self.num_tokens + then.num_tokens,
            bucket_tokens=self.bucket_tokens + then.bucket_tokens,
            step_seconds=self.step_seconds + then.step_seconds,
            num_last=self.num_last + then.num_last,
            preemptions=self.preemptions + then.preemptions,
            merged_shapes=_joined(self.shapes(), then.shapes()),
            work=added(self.work, then.work),
            page_lives=self.page_lives + then.page_lives,
        )


def merge_stats(engines: Collection[StepStats]) -> StepStats:
    """The state of several engines: numbers add up, `kv_usage` and `stage_seconds` are means.

    It does not describe their steps.
    """
    stages = [each.stage_seconds for each in engines if each.stage_seconds]
    return StepStats(
        num_running=sum(each.num_running for each in engines),
        num_waiting=sum(each.num_waiting for each in engines),
        num_deferred=sum(each.num_deferred for each in engines),
        kv_usage=sum(each.kv_usage for each in engines) / len(engines),
        prefix_queries=sum(each.prefix_queries for each in engines),
        prefix_hits=sum(each.prefix_hits for each in engines),
        num_preemptions=sum(each.num_preemptions for each in engines),
        num_compilations=sum(each.num_compilations for each in engines),
        num_snapshots=sum(each.num_snapshots for each in engines),
        sleep_level=max(each.sleep_level for each in engines),
        is_paused=any(each.is_paused for each in engines),
        weights_version=min(each.weights_version for each in engines),
        weights_problem=next((each.weights_problem for each in engines if each.weights_problem), ""),
        stage_seconds=tuple(sum(worked) / len(stages) for worked in zip(*stages, strict=True)),
        drafts=reduce(DraftCounts.plus, (each.drafts for each in engines), NO_DRAFTS),
        running_loras=tuple(sorted({name for each in engines for name in each.running_loras})),
        waiting_loras=tuple(sorted({name for each in engines for name in each.waiting_loras})),
        num_lora_reads=sum(each.num_lora_reads for each in engines),
        num_lora_writes=sum(each.num_lora_writes for each in engines),
        image_queries=sum(each.image_queries for each in engines),
        image_hits=sum(each.image_hits for each in engines),
        num_kv_events_dropped=sum(each.num_kv_events_dropped for each in engines),
        offload=reduce(OffloadCounts.plus, (each.offload for each in engines), NO_OFFLOAD),
        transfer=reduce(TransferCounts.plus, (each.transfer for each in engines), NO_TRANSFER),
    )


def added(first: Amounts, second: Amounts) -> Amounts:
    """The work of both."""
    return first[0] + second[0], first[1] + second[1], first[2] + second[2]


def _joined(*shapes: tuple[tuple[int, int, float], ...]) -> tuple[tuple[int, int, float], ...]:
    """One entry for each shape."""
    found: dict[int, tuple[int, float]] = {}
    for tokens, steps, seconds in chain(*shapes):
        before = found.get(tokens, (0, 0.0))
        found[tokens] = before[0] + steps, before[1] + seconds
    return tuple((tokens, *counted) for tokens, counted in found.items())
