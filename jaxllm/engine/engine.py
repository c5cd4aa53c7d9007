"""The engine: token ids in, token ids out. One call of `Engine.step` is the whole loop."""

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from jaxllm.config import EngineConfig
from jaxllm.config.progress import Progress, silent
from jaxllm.engine.assembly import (
    describe_stages,
    make_adapters,
    make_host_tier,
    make_kv_events,
    make_media,
    make_processing,
    make_scheduler,
    make_step_work,
    resolve_on_devices,
    step_estimates,
)
from jaxllm.engine.control import EngineControl
from jaxllm.engine.features.beam_search import BeamSearches
from jaxllm.engine.features.constrained import ConstrainedDecoding, make_constraints
from jaxllm.engine.features.faults import Faults, is_of_one_request
from jaxllm.engine.features.features import Features
from jaxllm.engine.features.logprobs import PromptLogprobs
from jaxllm.engine.features.transfer import PromptsForOthers, PromptsOfOthers
from jaxllm.engine.inspection import inspect_engine
from jaxllm.engine.integrity import IntegrityCheck
from jaxllm.engine.loop import StepLoop, describe
from jaxllm.engine.make_views import live_view, model_view
from jaxllm.engine.overlap_policy import OverlapPolicy
from jaxllm.engine.stats import NO_DRAFTS, NO_WORK, StepStats
from jaxllm.engine.step_log import StepLog
from jaxllm.engine.step_outputs import StepOutputs, num_last, refusal
from jaxllm.engine.validation import RequestLimits
from jaxllm.errors import JaxLLMError, RequestError, RequestFaultError, fault_message
from jaxllm.executor.build import build_runner
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.executor.runner import Dispatched, Runner
from jaxllm.requests.outputs import EngineOutput
from jaxllm.requests.request import FinishReason, Request, as_request_ids
from jaxllm.scheduler.scheduler import Scheduler

if TYPE_CHECKING:
    from jaxllm.engine.features.feature import StepFeature
    from jaxllm.engine.features.speculation import Speculation
    from jaxllm.hosts.group import Group


class Engine(StepLoop[Dispatched]):
    """Runs requests to their ends, as many at a time as slots, pages and the token budget allow.

    With asynchronous scheduling a request that ends by a token which the host has yet to see is part of one step too
    many, whose token nobody sees.

    Not thread-safe: one thread adds requests, steps and takes the outputs.
    """

    runner: Runner

    def __init__(self, resolved: ResolvedConfig, runner: Runner, num_pages: int) -> None:
        config = resolved.config
        planned, self._work = step_estimates(resolved, runner)
        info = describe(
            resolved,
            runner.num_shapes,
            max_logprobs=resolved.max_logprobs,
            num_pages=num_pages,
            cache_windows=resolved.cache_groups.windows,
            enable_prefix_caching=resolved.shares_prefixes,
            planned_step_seconds=planned,
            peaks=(0.0, 0.0) if self._work is None else self._work.peaks,
            stages=describe_stages(resolved, runner),
        )
        super().__init__(info, runner, config, resolved.num_stages)
        self._knows_tokens = resolved.num_stages > 1
        """Whether the host knows all tokens of requests that it schedules."""
        self.pages, self.scheduler = make_scheduler(resolved, num_pages)
        self._follows_pages = config.profiling.kv_cache_metrics
        if self._follows_pages:
            self.pages.watch_lifetimes(config.profiling.kv_cache_metrics_sample)
        self._kv_events = make_kv_events(resolved, self.pages)
        if self._kv_events is not None:
            self.info = replace(self.info, kv_events=self._kv_events.source)
            self.on_close.append(self._kv_events.close)
        self.host_tier = make_host_tier(resolved, runner, self.pages, self.scheduler)
        """What copies pages to the host, if anything does."""
        if self.host_tier is not None:
            exchange = self.host_tier.exchange
            transfer = None if exchange is None else exchange.info
            self.info = replace(self.info, tiers=self.host_tier.descriptions, kv_transfer=transfer)
        self._faults = Faults()
        self._outputs = StepOutputs(self._faults)
        self._integrity = IntegrityCheck(self.scheduler.check_integrity)
        self.adapters = make_adapters(resolved, runner)
        """Those that requests may have; None where the engine takes none."""
        self.media = make_media(resolved, runner, self.scheduler, self._faults, num_pages)
        """What encodes images or sound; None where requests have neither."""
        constrained = ConstrainedDecoding(
            self._faults, make_constraints(resolved), self.scheduler, runner, self._refuse, make_processing(resolved)
        )
        self._speculation = self._make_speculation(resolved, constrained)
        self._features = Features(
            (
                *self._adapter_feature(),
                *((self.media,) if self.media else ()),
                *self._transfer_features(),
                constrained,
                *((self._speculation,) if self._speculation else ()),
                BeamSearches(self._faults, resolved.max_model_len, self._finish_with_output),
                PromptLogprobs(self._faults),
            ),
            self._faults,
        )
        self._limits = RequestLimits.of(self.info)
        self.control = EngineControl(self, resolved)
        """Sleep, pauses and weight updates."""
        self._overlap = OverlapPolicy()
        self.step_log = StepLog(lambda: self._work or make_step_work(resolved, runner))
        """The last steps, while somebody watches."""

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

    def add_request(self, request: Request) -> None:
        """Queue a request.

        Raises `RequestError`, and queues nothing, when it cannot be served; `RequestFaultError` when the engine's own
        code has failed for it.
        """
        if not request.eos_token_ids:
            request.eos_token_ids = self.info.eos_token_ids
        try:
            self._limits.check(request)
            if self.control.is_halted or self.control.is_draining:
                self.control.defer(request)
                return
            features = self._features.prepare(request)
        except BaseException as error:
            if isinstance(error, JaxLLMError) or not is_of_one_request(error):
                raise
            raise RequestFaultError(fault_message(request.request_id)) from error
        self._overlap.on_request(request.owner)
        self.scheduler.add(request, [each.hold_reason for each in features if each.hold_reason])
        self._features.add(request, features)

    def _adapter_feature(self) -> "tuple[StepFeature, ...]":
        if self.adapters is None:
            return ()
        # Most engines have none: starts are faster without the import.
        from jaxllm.engine.features.adapters import AdapterRequests

        return (AdapterRequests(self._faults, self.adapters, self.scheduler, self._refuse),)

    def _transfer_features(self) -> "tuple[StepFeature, ...]":
        exchange = None if self.host_tier is None else self.host_tier.exchange
        if exchange is None:
            return ()
        assert isinstance(self.scheduler, Scheduler)
        return (
            PromptsForOthers(self._faults, exchange),
            PromptsOfOthers(self._faults, exchange, self.scheduler, self._refuse),
        )

    def _make_speculation(self, resolved: ResolvedConfig, constrained: ConstrainedDecoding) -> "Speculation | None":
        if not resolved.max_drafts:
            return None
        # Most engines have none: starts are faster without the import.
        from jaxllm.engine.features.make_speculation import make_speculation

        planned = self.info.planned_step_seconds
        return make_speculation(resolved, self._faults, self.scheduler, self.runner, constrained, planned)

    def add_or_refuse(self, request: Request) -> None:
        """Queue a request that was accepted earlier; if it cannot be served after all, a coming output says so."""
        try:
            self.add_request(request)
        except RequestError as error:
            is_fault = isinstance(error, RequestFaultError)
            self._ended.append(refusal(request, str(error), error.parameter, is_fault=is_fault))

    def abort_request(self, request_ids: str | Iterable[str]) -> None:
        """End requests early; the next step's outputs say so. Unknown or finished ones are ignored."""
        for request_id in as_request_ids(request_ids):
            request = self.scheduler.get(request_id) or self.control.pop_deferred(request_id)
            if request is not None:
                self._ended.append(self._finish_with_output(request, "abort"))
            elif self.host_tier is not None and self.host_tier.exchange is not None:
                self.host_tier.exchange.abort(request_id)

    def finish_request(self, request_id: str, stop_reason: str) -> None:
        """End a request whose text holds a stop string. There will be no further output of it."""
        self._finish(request_id, "stop", stop_reason)

    def has_unfinished_requests(self) -> bool:
        """Whether `step` has anything to do."""
        return bool(self._ended) or (self.scheduler.has_unfinished and not self.control.is_halted)

    def copy_while_idle(self) -> float:
        """Go on with copies of pages while there are no requests. Seconds until the next call; 0: nothing is left."""
        return 0.0 if self.host_tier is None or self.control.is_halted else self.host_tier.go_on()

    def unfinished_ids(self) -> set[str]:
        """Ids of the requests that wait or run."""
        return self.scheduler.unfinished_ids() | self.control.deferred_request_ids

    def step(self) -> list[EngineOutput]:
        """Compute one batch of tokens. Returns one output for each request that has any news."""
        if self.control.is_halted:
            ended, self._ended, self._step = self._ended, [], StepStats()
            return ended
        if self._features.active:
            self._features.on_step_begin()
            self._end_faulty()
        if self.host_tier is not None:
            self.host_tier.on_step_begin()
        outputs = super().step()
        if self.step_log.is_on and self._step.num_steps:
            self.step_log.on_end(self._last_end, self._step)
        if self.host_tier is not None:
            self.host_tier.on_step_end(is_idle=not self._step.num_steps)
        if self._kv_events is not None:
            self._kv_events.flush()
        if self._features.active and not self._step.num_steps:
            self._features.on_idle()
            self._end_faulty()
        if self._integrity.wanted:
            self._integrity.check_if_due()
        return outputs

    def _start(self) -> bool:
        began = time.monotonic()
        if self._under_way and self._features.active:
            _, last = self._under_way[-1]
            self._features.before_schedule(last)
            self._end_faulty()
        if self._under_way and not self._knows_tokens:
            _, last = self._under_way[-1]
            if self.runner.must_wait(self.scheduler.table) or self._overlap.must_wait(last.plan, last.bucket.tokens):
                return False
        plan = self.scheduler.schedule()
        if plan is None:
            return False
        self._outputs.on_scheduled(plan, began)
        if self._features.active:
            self._features.on_scheduled(plan)
        self._under_way.append((began, self.runner.dispatch(plan, self.scheduler.table)))
        if self.step_log.is_on:
            self.step_log.on_dispatched(began)
        if self._faults.requests:
            # Only now: the plan names slots, and theirs are theirs until it is dispatched.
            self._end_faulty()
        return True

    def _complete(self, began: float, step: Dispatched) -> list[EngineOutput]:
        if self._features.active:
            self._features.before_collect(step)
            self._end_faulty()
        # A feature hears of a step to its end, even if its last request ends meanwhile.
        features = self._features.active
        plan, result = step.plan, self.runner.collect(step)
        # Before the scheduler takes off what was computed in vain.
        work = NO_WORK
        if self._work is not None:
            work = self._work.of(plan.starts, plan.num_new_tokens, int(plan.samples.sum()))
        if self.step_log.is_on:
            self.step_log.on_collected(began, plan)
        if features:
            self._features.on_collected(features, step, result)
            self._end_faulty()
        finished = self.scheduler.update(plan, result.token_ids, result.counts)
        if features:
            finished += self._features.on_accept(features, step)
        outputs = self._outputs.of_step(plan, result, finished)
        if features:
            self._features.on_outputs(features, plan, result, outputs)
        if self._faults.requests:
            outputs = self._without_faulty(outputs, finished)
        if finished:
            self._forget(finished)
        if plan.num_decodes < plan.num_rows:
            self._overlap.on_step(result.bucket.tokens, time.monotonic() - max(began, self._last_end))
        self._step = StepStats(
            num_steps=1,
            num_rows=plan.num_rows,
            num_tokens=plan.num_tokens,
            bucket_tokens=result.bucket.tokens,
            num_last=num_last(plan, result, finished),
            preemptions=tuple([request.num_preemptions for request in finished]) if finished else (),
            work=work,
            page_lives=self.pages.take_lives() if self._follows_pages else (),
        )
        return outputs

    def _forget(self, requests: Iterable[Request]) -> None:
        """Requests have ended: drop what is only for them, and steps under way that are for nobody."""
        self._features.end(requests)
        if not self.scheduler.has_unfinished:
            self._under_way.clear()

    def stats(self) -> StepStats:
        """Counts of the last step, and the current load."""
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
            drafts=NO_DRAFTS if self._speculation is None else self._speculation.counts,
            **self.control.stats(),
            **self._feature_stats(),
        )

    def _feature_stats(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self.host_tier is not None:
            found["offload"] = self.host_tier.counts()
            if self.host_tier.exchange is not None:
                found["transfer"] = self.host_tier.exchange.counts()
        if self._kv_events is not None:
            found["num_kv_events_dropped"] = self._kv_events.num_dropped
        if self.media is not None:
            pool = self.media.pool
            found |= {"image_queries": pool.num_queries, "image_hits": pool.num_hits}
        if self.adapters is not None:
            stats = self.adapters.stats()
            found |= {
                "running_loras": stats.running,
                "waiting_loras": stats.waiting,
                "num_lora_reads": stats.num_reads,
                "num_lora_writes": stats.num_writes,
            }
        return found

    def mark_weights_stale(self, reason: str) -> None:
        """See `EngineControl.mark_weights_stale`."""
        self.control.mark_weights_stale(reason)

    def state(self) -> StepStats:
        """`stats` between steps: what the last one did is not told again."""
        self._step, self._step_seconds = StepStats(), 0.0
        if self._kv_events is not None:
            # Whatever was called may have reset the cache.
            self._kv_events.flush()
        return self.stats()

    def debug_state(self) -> str:
        """`EngineSnapshot` as JSON."""
        return msgspec.json.encode(inspect_engine(self, len(self._under_way))).decode()

    def live_view(self) -> str:
        """`LiveView` as JSON; for the next seconds, steps are recorded for the next one."""
        return msgspec.json.encode(live_view(self)).decode()

    def model_view(self) -> str:
        """`ModelView` as JSON."""
        return msgspec.json.encode(model_view(self)).decode()

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes. False, and no change, while requests run."""
        is_reset = self.scheduler.reset_prefix_cache()
        if is_reset and self.host_tier is not None:
            self.host_tier.forget_files()
        if self._kv_events is not None:
            self._kv_events.flush()
        return is_reset

    def close(self) -> None:
        """Free the device memory. The engine cannot be used afterwards."""
        self._features.close()
        if self.host_tier is not None:
            self.host_tier.close()
        super().close()

    def _finish(self, request_id: str, reason: FinishReason, stop_reason: str | None) -> Request | None:
        self._outputs.forget(request_id)
        request = self.scheduler.finish(request_id, reason, stop_reason)
        if request is not None:
            self._forget([request])
        return request

    def _finish_with_output(self, request: Request, reason: FinishReason) -> EngineOutput:
        """End a request; returns its last output, without tokens."""
        output = self._outputs.last_of(request, reason)
        self._finish(request.request_id, reason, None)
        return output

    def _refuse(self, request: Request, message: str, parameter: str | None, *, is_fault: bool = False) -> None:
        """End a request that cannot be served, or not any further; a coming output says so.

        With `is_fault` it is not to blame.
        """
        if self.scheduler.get(request.request_id) is request:
            output = self._finish_with_output(request, "abort")
            output.refusal, output.refused_parameter, output.is_fault = message, parameter, is_fault
            self._ended.append(output)

    def _end_faulty(self) -> None:
        """End the requests whose host code has failed; a coming output of each says so."""
        if not self._faults.requests:
            return
        for request in self._faults.take():
            self._refuse(request, fault_message(request.request_id), None, is_fault=True)
        self._integrity.want()

    def _without_faulty(self, outputs: list[EngineOutput], finished: list[Request]) -> list[EngineOutput]:
        """`outputs` without those of requests that have failed in this step, which are told of that instead."""
        for request in self._faults.take():
            name, told = request.request_id, fault_message(request.request_id)
            outputs = [output for output in outputs if output.request_id != name]
            if request in finished or request.finish_reason is not None:
                # It ended with this step, and nobody has been told.
                self._ended.append(refusal(request, told, is_fault=True))
                if request not in finished:
                    # The hook that has ended it failed after that.
                    self._forget([request])
            else:
                self._refuse(request, told, None, is_fault=True)
        self._integrity.want()
        return outputs
