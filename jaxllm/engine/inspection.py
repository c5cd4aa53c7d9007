"""What an engine is doing right now, for an operator: lengths and states of requests, and pages. No texts."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from jaxllm.kv.manager import KVManager
from jaxllm.requests.request import Request

if TYPE_CHECKING:
    from jaxllm.engine.engine import Engine

MOST_REQUESTS = 1000
"""Requests that are listed: those that run first, then those that came first."""


class RequestSnapshot(msgspec.Struct, kw_only=True):
    """A request of the engine: its state, and its tokens.

    It waits for a slot ("waiting"), for what `waits_for` names ("held") or for an engine that is paused or asleep
    ("deferred"), or computes its prompt ("prefill") or further tokens ("decode"). `computed_tokens` have their keys and
    values in the cache; a prefix that was found there counts too (`cached_tokens`).
    """

    request_id: str
    state: Literal["deferred", "held", "waiting", "prefill", "decode"]
    waits_for: list[str] = []
    owner: str
    priority: int = 0
    adapter: str | None = None
    prompt_tokens: int
    output_tokens: int = 0
    max_tokens: int | None = None
    computed_tokens: int = 0
    cached_tokens: int = 0
    pages: int = 0
    preemptions: int = 0


class PageSnapshot(msgspec.Struct, kw_only=True):
    """The KV cache of a data shard, in pages of `size` tokens: held by requests, free, and found by prefixes."""

    size: int
    total: int
    held: int
    free: int
    cached: int


class EngineSnapshot(msgspec.Struct, kw_only=True):
    """The state of an engine between two steps; without requests beyond `MOST_REQUESTS`, which `unlisted` counts."""

    running: int
    waiting: int
    steps_in_flight: int
    preemptions: int = 0
    halted: str = ""
    """Why nothing is computed."""
    pages: list[PageSnapshot] = []
    requests: list[RequestSnapshot] = []
    unlisted: int = 0


def inspect_engine(engine: "Engine", steps_in_flight: int) -> EngineSnapshot:
    """The state of an engine, between its steps."""
    scheduler = engine.scheduler
    requests = sorted(scheduler.unfinished(), key=lambda each: (each.slot < 0, each.arrival))
    listed = [_in_scheduler(engine, each) for each in requests[:MOST_REQUESTS]]
    deferred = engine.control.deferred
    listed += [_snapshot(each, "deferred") for each in deferred[: MOST_REQUESTS - len(listed)]]
    shards = shards_of(engine)
    return EngineSnapshot(
        running=scheduler.num_running,
        waiting=scheduler.num_waiting + len(deferred),
        steps_in_flight=steps_in_flight,
        preemptions=scheduler.num_preemptions,
        halted=engine.stats().halted,
        pages=[
            PageSnapshot(
                size=each.block_size,
                total=each.num_pages - 1,
                held=each.num_held_pages,
                free=each.num_free_pages,
                cached=each.num_cached_pages,
            )
            for each in shards
        ],
        requests=listed,
        unlisted=len(requests) + len(deferred) - len(listed),
    )


def shards_of(engine: "Engine") -> Sequence[KVManager]:
    """The pages of each data shard."""
    return (engine.pages,) if isinstance(engine.pages, KVManager) else engine.pages.shards


def _in_scheduler(engine: "Engine", request: Request) -> RequestSnapshot:
    table, slot = engine.scheduler.table, request.slot
    if slot < 0:
        reasons = sorted(engine.scheduler.hold_reasons(request))
        found = _snapshot(request, "held" if reasons else "waiting")
        found.waits_for = reasons
        return found
    # Of drafts under way nobody knows yet whether they count.
    known = int(table.num_tokens[slot])
    computed = min(known, int(table.num_computed[slot]))
    found = _snapshot(request, "prefill" if known - computed > 1 else "decode")
    found.output_tokens = known - found.prompt_tokens
    found.computed_tokens = computed
    found.pages = int(table.count_held(slot))
    return found


def _snapshot(request: Request, state: Literal["deferred", "held", "waiting", "prefill", "decode"]) -> RequestSnapshot:
    adapter = request.lora_request
    return RequestSnapshot(
        request_id=request.request_id,
        state=state,
        owner=request.owner.name,
        priority=request.priority,
        adapter=None if adapter is None else adapter.lora_name,
        prompt_tokens=len(request.prompt_token_ids),
        output_tokens=len(request.output_token_ids),
        max_tokens=request.params.max_tokens,
        cached_tokens=request.num_cached_tokens,
        preemptions=request.num_preemptions,
    )
