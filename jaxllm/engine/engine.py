"""The engine: token ids in, token ids out. One call of `Engine.step` is the whole loop."""

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from jaxllm.config import EngineConfig
from jaxllm.engine.beams import BeamSearches
from jaxllm.engine.collaborator import Collaborator
from jaxllm.engine.constrained import ConstrainedDecoding, make_constraints
from jaxllm.engine.control import EngineControl
from jaxllm.engine.logprobs import PromptLogprobs, output_logprobs
from jaxllm.engine.loop import StepLoop, describe
from jaxllm.engine.stats import StepStats
from jaxllm.engine.turns import Turns
from jaxllm.engine.validation import RequestLimits
from jaxllm.info import StageInfo
from jaxllm.kv.manager import KVManager
from jaxllm.kv.snapshots import SnapshotPool
from jaxllm.outputs import EngineOutput
from jaxllm.progress import Progress, silent
from jaxllm.request import FinishReason, Request, as_request_ids
from jaxllm.runtime.build import build_runner
from jaxllm.runtime.memory.capacity import bytes_on_device
from jaxllm.runtime.resolved import ResolvedConfig, resolve_config
from jaxllm.runtime.runner import Dispatched, Runner, StepResult
from jaxllm.scheduler.plan import StepPlan
from jaxllm.scheduler.scheduler import Scheduler

if TYPE_CHECKING:
    from jaxllm.engine.processing import Processing
    from jaxllm.hosts.group import Group
    from jaxllm.kv.shards import ShardedPages
    from jaxllm.scheduler.sharded import ShardedScheduler


class Engine(StepLoop[Dispatched]):
    """Runs requests to their ends, as many at a time as slots, pages and the token budget allow.

    With asynchronous scheduling a request that ends by a token which the host has yet to see is part of one step too
    many, whose token nobody sees.

    Not thread-safe: one thread adds requests, steps and takes the outputs.
    """

    runner: Runner

    def __init__(self, resolved: ResolvedConfig, runner: Runner, num_pages: int) -> None:
        config = resolved.config
        info = describe(
            resolved,
            runner.num_shapes,
            max_logprobs=resolved.max_logprobs,
            num_pages=num_pages,
            cache_windows=resolved.cache_groups.windows,
            enable_prefix_caching=resolved.shares_prefixes,
            planned_step_seconds=_planned_step_seconds(resolved, runner),
            stages=_describe_stages(resolved, runner),
        )
        super().__init__(info, runner, config, resolved.num_stages)
        groups, interval = resolved.cache_groups, config.cache.prefix_cache_retention_interval
        shards = [
            KVManager(
                num_pages,
                resolved.page_size,
                enable_prefix_caching=resolved.shares_prefixes,
                groups=groups,
                snapshots=SnapshotPool(resolved.max_num_seqs, resolved.num_snapshots) if groups.has_states else None,
                retention_interval=None if interval == "dense" else interval,
            )
            for _ in range(resolved.data_shards)
        ]
        options: dict[str, Any] = {
            "max_num_seqs": resolved.max_num_seqs,
            "max_num_batched_tokens": resolved.max_num_batched_tokens,
            "max_model_len": resolved.max_model_len,
            "policy": config.scheduler.scheduling_policy,
            "long_prefill_token_threshold": config.scheduler.long_prefill_token_threshold,
            "mamba_block_size": config.cache.mamba_block_size,
            "stages": resolved.num_stages if config.scheduler.async_scheduling else 1,
        }
        self._knows_tokens = resolved.num_stages > 1
        """Whether the host knows all tokens of requests that it schedules."""
        self.pages: KVManager | ShardedPages
        self.scheduler: Scheduler | ShardedScheduler
        if len(shards) == 1:
            self.pages, self.scheduler = shards[0], Scheduler(pages=shards[0], **options)
        else:
            self.pages, self.scheduler = _sharded(shards, options)
        self._collaborators: tuple[Collaborator, ...] = (
            ConstrainedDecoding(
                make_constraints(resolved), self.scheduler, runner, self._refuse, _processing(resolved)
            ),
            BeamSearches(resolved.max_model_len, self._finish_with_output),
            PromptLogprobs(),
        )
        self._active: list[Collaborator] = []
        """Those of them that unfinished requests concern. It is replaced and never changed, see `step`."""
        self._limits = RequestLimits.of(self.info)
        self.control = EngineControl(self, resolved)
        """Sleep, pauses and weight updates."""
        self._scheduled: dict[str, float] = {}
        self._turns = Turns()

    @classmethod
    def from_config(cls, config: EngineConfig, progress: Progress = silent, group: "Group | None" = None) -> "Engine":
        """Find the model, load its weights, compile every step shape and allocate the KV cache.

        With a `group`, this is the first of several processes whose devices make the engine.

        Raises:
            ConfigError: an option or the checkpoint is wrong.
            CapacityError: the model, or one request of its longest length, does not fit.
        """
        resolved = resolve_on_devices(config, 1 if group is None else group.place.size)
        resolved, runner, num_pages = build_runner(resolved, progress, group)
        return cls(resolved, runner, num_pages)

    def check_request(self, request: Request) -> None:
        """Raise `RequestError`, naming the parameter, unless this engine can serve the request."""
        self._limits.check(request)

    def add_request(self, request: Request) -> None:
        """Queue a request. Raises `RequestError`, and queues nothing, when it cannot be served."""
        if not request.eos_token_ids:
            request.eos_token_ids = self.info.eos_token_ids
        self._limits.check(request)
        if self.control.is_halted or self.control.is_draining:
            self.control.hold(request)
            return
        concerned = [each for each in self._collaborators if each.concerns(request)]
        for collaborator in concerned:
            collaborator.prepares(request)
        self._turns.arrived(request.owner)
        self.scheduler.add(request, held=any(each.holds for each in concerned))
        for collaborator in concerned:
            collaborator.added(request)
        if concerned:
            self._active = [each for each in self._collaborators if each.requests]

    def abort_request(self, request_ids: str | Iterable[str]) -> None:
        """End requests early; the next step's outputs say so. Unknown or finished ones are ignored."""
        for request_id in as_request_ids(request_ids):
            request = self.scheduler.get(request_id) or self.control.let_go(request_id)
            if request is not None:
                self._ended.append(self._finish_with_output(request, "abort"))

    def finish_request(self, request_id: str, stop_reason: str) -> None:
        """End a request whose text holds a stop string. There will be no further output of it."""
        self._finish(request_id, "stop", stop_reason)

    def has_unfinished_requests(self) -> bool:
        """Whether `step` has anything to do."""
        return bool(self._ended) or (self.scheduler.has_unfinished and not self.control.is_halted)

    def unfinished_ids(self) -> set[str]:
        """Ids of the requests that wait or run."""
        return self.scheduler.unfinished_ids() | self.control.held_ids

    def step(self) -> list[EngineOutput]:
        """Compute one batch of tokens. Returns one output for each request that has any news."""
        if self.control.is_halted:
            ended, self._ended, self._step = self._ended, [], StepStats()
            return ended
        for each in self._active:
            each.begins()
        outputs = super().step()
        if not self._step.num_steps:
            for each in self._active:
                each.idle()
        return outputs

    def _start(self) -> bool:
        began = time.monotonic()
        if self._under_way:
            _, last = self._under_way[-1]
            for each in self._active:
                each.before_schedule(last)
        if self._under_way and not self._knows_tokens and self._must_wait(self._under_way[-1][1]):
            return False
        plan = self.scheduler.schedule()
        if plan is None:
            return False
        self._note_admissions(plan, began)
        for each in self._active:
            each.scheduled(plan)
        self._under_way.append((began, self.runner.dispatch(plan, self.scheduler.table)))
        return True

    def _must_wait(self, last: Dispatched) -> bool:
        """Whether the step behind the last one is to be scheduled when that has ended."""
        return self.runner.must_wait(self.scheduler.table) or self._turns.must_wait(last.plan, last.bucket.tokens)

    def _complete(self, began: float, step: Dispatched) -> list[EngineOutput]:
        for each in self._active:
            each.before_collect(step)
        plan, result = step.plan, self.runner.collect(step)
        for each in self._active:
            each.collected(step, result)
        finished = self.scheduler.update(plan, result.token_ids, result.counts)
        for each in self._active:
            finished += each.updated(step)
        outputs = self._outputs(plan, result, finished)
        for each in self._active:
            each.reported(plan, result, outputs)
        if finished:
            self._forget(finished)
        if plan.num_decodes < plan.num_rows:
            self._turns.took(result.bucket.tokens, time.monotonic() - max(began, self._last_end))
        self._step = StepStats(
            num_steps=1,
            num_rows=plan.num_rows,
            num_tokens=plan.num_tokens,
            bucket_tokens=result.bucket.tokens,
            num_last=len(finished),
            preemptions=tuple([request.num_preemptions for request in finished]) if finished else (),
        )
        return outputs

    def _forget(self, requests: Iterable[Request]) -> None:
        """Requests have ended: drop what is only for them, and steps under way that are for nobody."""
        if self._active:
            for request in requests:
                for each in self._active:
                    each.ended(request)
            self._active = [each for each in self._active if each.requests]
        if not self.scheduler.has_unfinished:
            self._under_way.clear()

    def stats(self) -> StepStats:
        """What the last step did, and how things stand now."""
        scheduler, pages = self.scheduler, self.pages
        return replace(
            self._step,
            step_seconds=self._step_seconds,
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            num_deferred=scheduler.num_held,
            kv_usage=pages.usage,
            prefix_queries=pages.prefix_queries,
            prefix_hits=pages.prefix_hits,
            num_preemptions=scheduler.num_preemptions,
            num_compilations=self.runner.watch.count,
            num_snapshots=0 if pages.snapshots is None else len(pages.snapshots),
            stage_seconds=self.runner.calls.stage_seconds,
            **self.control.stats(),
        )

    def distrust_weights(self, reason: str) -> None:
        """See `EngineControl.distrust_weights`."""
        self.control.distrust_weights(reason)

    def state(self) -> StepStats:
        """`stats` between steps: what the last one did is not told again."""
        self._step, self._step_seconds = StepStats(), 0.0
        return self.stats()

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes. False, and no change, while requests run."""
        return self.scheduler.reset_prefix_cache()

    def close(self) -> None:
        """Free the device memory. The engine cannot be used afterwards."""
        for each in self._collaborators:
            each.close()
        super().close()

    def _finish(self, request_id: str, reason: FinishReason, stop_reason: str | None) -> Request | None:
        self._scheduled.pop(request_id, None)
        request = self.scheduler.finish(request_id, reason, stop_reason)
        if request is not None:
            self._forget([request])
        return request

    def _finish_with_output(self, request: Request, reason: FinishReason) -> EngineOutput:
        """End a request; returns its last output, without tokens."""
        scheduled = self._scheduled.get(request.request_id)
        self._finish(request.request_id, reason, None)
        return EngineOutput(request.request_id, [], finish_reason=reason, scheduled_time=scheduled)

    def _note_admissions(self, plan: StepPlan, now: float) -> None:
        """Remember when new requests were scheduled, until their first output takes it along."""
        for request in plan.admitted:
            if not request.num_preemptions and (request.group is None or request.group.leader is request):
                self._scheduled[request.request_id] = now

    def _refuse(self, request: Request, message: str, parameter: str | None, *, is_fault: bool = False) -> None:
        """End a request that cannot be served, or not any further; a coming output says so.

        With `is_fault` it is not to blame.
        """
        if self.scheduler.get(request.request_id) is request:
            output = self._finish_with_output(request, "abort")
            output.refusal, output.refused_parameter, output.is_fault = message, parameter, is_fault
            self._ended.append(output)

    def _outputs(self, plan: StepPlan, result: StepResult, finished: list[Request]) -> list[EngineOutput]:
        outputs = []
        rows = np.flatnonzero(plan.samples).tolist()
        one_each = result.counts is None
        tokens = result.token_ids[plan.samples][:, None].tolist() if one_each else _tokens_by_row(plan, result)
        for row, token_ids in zip(rows, tokens, strict=True):
            request = plan.requests[row]
            output = EngineOutput(request.request_id, token_ids, num_cached_tokens=request.num_cached_tokens)
            if result.logprobs is not None:
                output.logprobs = output_logprobs(request, token_ids[0], result, row)
            outputs.append(output)
        if finished:
            by_id = {output.request_id: output for output in outputs}
            for request in finished:
                output = by_id[request.request_id]
                output.finish_reason, output.stop_reason = request.finish_reason, request.stop_reason
        if self._scheduled:
            for output in outputs:
                output.scheduled_time = self._scheduled.pop(output.request_id, None)
        return outputs


def _sharded(shards: list[KVManager], options: dict[str, Any]) -> "tuple[ShardedPages, ShardedScheduler]":
    # Most engines have one shard: starts are faster without the imports.
    from jaxllm.kv.shards import ShardedPages
    from jaxllm.scheduler.sharded import ShardedScheduler

    return ShardedPages(shards), ShardedScheduler(shards, **options)


def resolve_on_devices(config: EngineConfig, processes: int = 1) -> ResolvedConfig:
    """The configuration, as it fits the devices that are here, with kernels that are right on them."""
    resolved = resolve_config(config, processes=processes)
    if resolved.platform != "cpu":
        # Only here: a start on CPU need not wait for the imports.
        from jaxllm.planning.fit import fit_here
        from jaxllm.runtime.sampling.self_test import with_tested_sampling
        from jaxllm.runtime.tested import with_tested_kernels

        resolved = with_tested_sampling(with_tested_kernels(fit_here(resolved)))
    return resolved


def _processing(resolved: ResolvedConfig) -> "Processing | None":
    if not resolved.processors:
        return None
    # Most engines have none: starts are faster without the import.
    from jaxllm.engine.processing import Processing

    return Processing(resolved)


def _planned_step_seconds(resolved: ResolvedConfig, runner: Runner) -> dict[int, float]:
    if resolved.platform == "cpu":
        return {}
    # Only here: a start on CPU need not wait for the import.
    from jaxllm.planning.step_times import planned_step_seconds

    parts = zip(resolved.by_stage, runner.calls.every, strict=True)
    found = [planned_step_seconds(part, calls.parameters, runner.buckets) for part, calls in parts]
    # As many steps are under way as there are stages: one ends as often as the slowest stage does one.
    return {tokens: max(each[tokens] for each in found) for tokens in found[0]}


def _describe_stages(resolved: ResolvedConfig, runner: Runner) -> tuple[StageInfo, ...]:
    parts = zip(resolved.by_stage, runner.calls.every, strict=True)
    return tuple(
        StageInfo(
            start=part.stage.start,
            stop=part.stage.stop,
            num_devices=part.num_devices,
            weight_bytes=bytes_on_device(calls.parameters),
            cache_bytes=bytes_on_device(calls.state.kv_cache),
        )
        for part, calls in parts
        if part.stage is not None
    )


def _tokens_by_row(plan: StepPlan, result: StepResult) -> list[list[int]]:
    """The tokens that were taken of each row that samples, where some have several."""
    tokens, counts, taken = result.token_ids, result.counts, plan.num_taken
    assert counts is not None
    assert taken is not None
    firsts = (np.cumsum(counts) - counts)[plan.samples]
    ends = firsts + taken[plan.samples]
    return [tokens[first:end].tolist() for first, end in zip(firsts.tolist(), ends.tolist(), strict=True)]
