"""The engine: token ids in, token ids out. One call of `Engine.step` is the whole loop."""

import time
from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np
from msgspec.structs import replace

from jaxllm.beam.group import BeamGroup
from jaxllm.config import EngineConfig
from jaxllm.engine.constrained import GuidedSteps
from jaxllm.engine.stats import StepStats
from jaxllm.engine.validation import RequestLimits
from jaxllm.errors import ConfigError, RequestError
from jaxllm.garbage import trim_heap
from jaxllm.info import EngineInfo
from jaxllm.kv.manager import KVManager
from jaxllm.models.checkpoint.checkpoint import resolve
from jaxllm.models.errors import ModelError
from jaxllm.outputs import EngineOutput, TokenLogprobs
from jaxllm.progress import Progress, silent
from jaxllm.request import FinishReason, Request, as_request_ids
from jaxllm.runtime.build import build_runner
from jaxllm.runtime.resolved import ResolvedConfig, resolve_config
from jaxllm.runtime.runner import Dispatched, PromptChunk, Runner, StepResult
from jaxllm.runtime.sampling.logprobs import Logprobs
from jaxllm.scheduler.plan import StepPlan
from jaxllm.scheduler.scheduler import Scheduler
from jaxllm.structured.backend import Vocabulary
from jaxllm.structured.guides import Guides


class Engine:
    """Runs requests to their ends, as many at a time as slots, pages and the token budget allow.

    With asynchronous scheduling a step is scheduled and started while the one before it runs. A request that ends by a
    token which the host has yet to see is then part of one step too many, whose token nobody sees.

    Not thread-safe: one thread adds requests, steps and takes the outputs.
    """

    def __init__(self, resolved: ResolvedConfig, runner: Runner, num_pages: int) -> None:
        config = resolved.config
        self.info = _describe(resolved, num_pages, runner.num_shapes)
        self.runner = runner
        self.pages = KVManager(num_pages, resolved.page_size, enable_prefix_caching=config.cache.enable_prefix_caching)
        self.scheduler = Scheduler(
            max_num_seqs=config.scheduler.max_num_seqs,
            max_num_batched_tokens=resolved.max_num_batched_tokens,
            max_model_len=resolved.max_model_len,
            pages=self.pages,
            policy=config.scheduler.scheduling_policy,
            long_prefill_token_threshold=config.scheduler.long_prefill_token_threshold,
        )
        self._guided = GuidedSteps(_guides(resolved), self.scheduler, runner, self._refuse)
        self._limits = RequestLimits.of(self.info)
        self._depth = 2 if config.scheduler.async_scheduling else 1
        self._under_way: deque[tuple[float, Dispatched]] = deque()  # with the time each was begun
        self._last_end = 0.0
        self._prompt_logprobs: dict[Request, list[TokenLogprobs | None]] = {}
        self._scheduled: dict[str, float] = {}
        self._ended: list[EngineOutput] = []
        self._step = StepStats()

    @classmethod
    def from_config(cls, config: EngineConfig, progress: Progress = silent) -> "Engine":
        """Find the model, load its weights, compile every step shape and allocate the KV cache.

        Raises:
            ConfigError: an option or the checkpoint is wrong.
            CapacityError: the model, or one request of its longest length, does not fit.
        """
        resolved = resolve_config(config)
        runner, num_pages = build_runner(resolved, progress)
        return cls(resolved, runner, num_pages)

    def check_request(self, request: Request) -> None:
        """Raise `RequestError`, naming the parameter, unless this engine can serve the request."""
        self._limits.check(request)

    def add_request(self, request: Request) -> None:
        """Queue a request. Raises `RequestError`, and queues nothing, when it cannot be served."""
        if not request.eos_token_ids:
            request.eos_token_ids = self.info.eos_token_ids
        self.check_request(request)
        params = request.params
        limited = params.structured_outputs is not None or params.thinking_token_budget is not None
        guided = limited and params.uses_grammar
        self.scheduler.add(request, held=guided)
        if guided:
            self._guided.add(request)
        if params.prompt_logprobs is not None:
            self._prompt_logprobs[request] = [None] * len(request.prompt_token_ids)

    def abort_request(self, request_ids: str | Iterable[str]) -> None:
        """End requests early; the next step's outputs say so. Unknown or finished ones are ignored."""
        for request_id in as_request_ids(request_ids):
            scheduled = self._scheduled.get(request_id)
            request = self._finish(request_id, "abort", None)
            if request is not None:
                self._ended.append(EngineOutput(request_id, [], finish_reason="abort", scheduled_time=scheduled))

    def finish_request(self, request_id: str, stop_reason: str) -> None:
        """End a request whose text holds a stop string. There will be no further output of it."""
        self._finish(request_id, "stop", stop_reason)

    def has_unfinished_requests(self) -> bool:
        """Whether `step` has anything to do."""
        return self.scheduler.has_unfinished or bool(self._ended)

    def unfinished_ids(self) -> set[str]:
        """Ids of the requests that wait or run."""
        return self.scheduler.unfinished_ids()

    def is_ending(self, request_id: str) -> bool:
        """Whether a request has ended, and the next step's outputs will say so."""
        return any(output.request_id == request_id for output in self._ended)

    def step(self) -> list[EngineOutput]:
        """Compute one batch of tokens. Returns the news, one output per request that has any."""
        if self._guided.requests:
            self._guided.admit()
        ended, self._ended = self._ended, []
        while len(self._under_way) < self._depth and self._start():
            pass
        if not self._under_way:
            self._guided.wait()
            self._step = StepStats()
            return ended
        return ended + self._complete(*self._under_way.popleft())

    def _start(self) -> bool:
        """Schedule a step and hand it to the device; False when there is none before the next result."""
        began = time.monotonic()
        if self._under_way and self._guided.requests:
            # The next step reads the tokens of this one on the device.
            self._guided.choose(self._under_way[-1][1])
        if self._under_way and self.runner.must_wait(self.scheduler.table):
            return False
        plan = self.scheduler.schedule()
        if plan is None:
            return False
        self._note_admissions(plan, began)
        constrained = self._guided.rows(plan) if self._guided.requests else None
        self._under_way.append((began, self.runner.dispatch(plan, self.scheduler.table, constrained)))
        return True

    def _complete(self, began: float, step: Dispatched) -> list[EngineOutput]:
        """Wait for a step, and take what it computed."""
        if step.constrained is not None:
            self._guided.choose(step)
        plan, result = step.plan, self.runner.collect(step)
        for chunk in result.prompts:
            self._take_prompt_logprobs(chunk)
        if step.constrained is not None:
            self._guided.extend(step, result)
        finished = self.scheduler.update(plan, result.token_ids, result.counts)
        if step.constrained is not None:
            finished += self._guided.settle(step)
        if finished:
            for request in finished if self._guided.requests else ():
                self._guided.forget(request)
            self._drop_wasted_steps()
        outputs = self._outputs(plan, result, finished)
        if plan.lanes is not None:
            outputs += self._advance_beams(plan, result)
        began, self._last_end = max(began, self._last_end), time.monotonic()
        self._step = StepStats(
            num_steps=1,
            num_rows=plan.num_rows,
            num_tokens=plan.num_tokens,
            bucket_tokens=result.bucket.tokens,
            step_seconds=self._last_end - began,
            num_last=len(finished),
            preemptions=tuple([request.num_preemptions for request in finished]) if finished else (),
        )
        return outputs

    def _drop_wasted_steps(self) -> None:
        """Forget steps under way when no request is left that they could be for."""
        if not self.scheduler.has_unfinished:
            self._under_way.clear()

    def stats(self) -> StepStats:
        """What the last step did, and how things stand now."""
        scheduler, pages = self.scheduler, self.pages
        return replace(
            self._step,
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            num_deferred=scheduler.num_held,
            kv_usage=pages.usage,
            prefix_queries=pages.prefix_queries,
            prefix_hits=pages.prefix_hits,
            num_preemptions=scheduler.num_preemptions,
            num_compilations=self.runner.watch.count,
        )

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes. False, and no change, while requests run."""
        return self.scheduler.reset_prefix_cache()

    def close(self) -> None:
        """Free the device memory. The engine cannot be used afterwards."""
        self._under_way.clear()
        self._guided.close()
        self.runner.close()
        trim_heap()

    def _finish(self, request_id: str, reason: FinishReason, stop_reason: str | None) -> Request | None:
        self._scheduled.pop(request_id, None)
        request = self.scheduler.finish(request_id, reason, stop_reason)
        if request is not None:
            self._prompt_logprobs.pop(request, None)
            if self._guided.requests:
                self._guided.forget(request)
        self._drop_wasted_steps()
        return request

    def _note_admissions(self, plan: StepPlan, now: float) -> None:
        """Remember when new requests were scheduled, until their first output takes it along."""
        for request in plan.admitted:
            if not request.num_preemptions and (request.group is None or request.group.leader is request):
                self._scheduled[request.request_id] = now

    def _refuse(self, request: Request, message: str, parameter: str | None) -> None:
        """End a request that cannot be served, or not any further; a coming output says so."""
        scheduled = self._scheduled.get(request.request_id)
        if self._finish(request.request_id, "abort", None) is not None:
            self._ended.append(
                EngineOutput(
                    request.request_id,
                    [],
                    finish_reason="abort",
                    scheduled_time=scheduled,
                    refusal=message,
                    refused_parameter=parameter,
                )
            )

    def _outputs(self, plan: StepPlan, result: StepResult, finished: list[Request]) -> list[EngineOutput]:
        outputs = []
        rows = np.flatnonzero(plan.samples).tolist()
        prompts = self._prompt_logprobs
        for row, token_ids in zip(rows, _tokens_by_row(plan, result), strict=True):
            request = plan.requests[row]
            output = EngineOutput(request.request_id, token_ids, num_cached_tokens=request.num_cached_tokens)
            if result.logprobs is not None:
                self._add_logprobs(output, request, result, row)
            if prompts:
                output.prompt_logprobs = prompts.pop(request, None)
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

    def _advance_beams(self, plan: StepPlan, result: StepResult) -> list[EngineOutput]:
        """Give beam searches what their lanes may go on with; the outputs of those that are over."""
        assert plan.lanes is not None
        outputs = []
        for row in plan.lanes.tolist():
            request, logprobs = plan.requests[row], result.logprobs
            assert request.group is not None
            assert logprobs is not None
            request.group.take(request, np.asarray(logprobs.top_ids[row]), np.asarray(logprobs.top_logprobs[row]))
            if request.group.search.done:
                outputs.append(self._end_beams(request.group))
        return outputs

    def _end_beams(self, group: BeamGroup) -> EngineOutput:
        leader, beams = group.leader, group.hypotheses()
        scheduled = self._scheduled.get(leader.request_id)
        reason: FinishReason = group.search.best[0].reason
        self._finish(leader.request_id, reason, None)
        return EngineOutput(
            leader.request_id,
            [],
            finish_reason=reason,
            num_cached_tokens=leader.num_cached_tokens,
            scheduled_time=scheduled,
            beams=beams,
        )

    def _add_logprobs(self, output: EngineOutput, request: Request, result: StepResult, row: int) -> None:
        params = request.params
        if params.logprobs is None and params.num_sequences == params.n:
            return
        assert result.logprobs is not None
        found = _token_logprobs(output.token_ids[0], result.logprobs, row, params.logprobs)
        listed = params.logprob_token_ids
        if listed is not None:
            assert result.listed is not None
            found = replace(found, top_ids=listed, top_logprobs=result.listed[row][: len(listed)].tolist())
        output.logprobs = [found]

    def _take_prompt_logprobs(self, chunk: PromptChunk) -> None:
        """Keep a chunk's log-probabilities until the prompt is complete."""
        request = chunk.request
        kept = self._prompt_logprobs.get(request)
        if kept is None:
            return  # It was aborted while the step ran.
        for offset in range(chunk.end - chunk.begin):
            block, row = divmod(offset, len(chunk.blocks[0].logprob))
            position = chunk.begin + offset
            kept[position] = _token_logprobs(
                int(request.prompt_token_ids[position]), chunk.blocks[block], row, request.params.prompt_logprobs
            )


def _guides(resolved: ResolvedConfig) -> Guides:
    """What follows grammars: it needs to know the bytes of tokens, and no more of text."""
    folder, options = resolved.folder, resolved.config.model
    try:
        if options.tokenizer is not None:
            folder = resolve(options.tokenizer, None, options.download_dir, weights=False)
        return Guides(
            Vocabulary(folder, resolved.vocab_size, tuple(resolved.model.eos_token_ids)), resolved.config.structured
        )
    except (ModelError, RequestError) as error:
        raise ConfigError(str(error)) from error


def _describe(resolved: ResolvedConfig, num_pages: int, num_shapes: int) -> EngineInfo:
    config = resolved.config
    return EngineInfo(
        model=config.model.model,
        model_folder=str(resolved.folder),
        vocab_size=resolved.model.vocab_size,
        eos_token_ids=tuple(resolved.model.eos_token_ids),
        max_model_len=resolved.max_model_len,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_num_batched_tokens=resolved.max_num_batched_tokens,
        max_logprobs=resolved.max_logprobs,
        num_pages=num_pages,
        block_size=resolved.page_size,
        enable_prefix_caching=config.cache.enable_prefix_caching,
        dtype=resolved.dtype,
        device_kind=resolved.device_kind,
        num_devices=resolved.num_devices,
        num_shapes=num_shapes,
        structured_outputs_backend=config.structured.structured_outputs_backend,
    )


def _tokens_by_row(plan: StepPlan, result: StepResult) -> list[list[int]]:
    """The tokens that were taken of each row that samples."""
    tokens, counts, taken = result.token_ids, result.counts, plan.num_taken
    if counts is None or taken is None:
        by_row: list[list[int]] = tokens[plan.samples][:, None].tolist()
        return by_row
    firsts = (np.cumsum(counts) - counts)[plan.samples]
    ends = firsts + taken[plan.samples]
    return [tokens[first:end].tolist() for first, end in zip(firsts.tolist(), ends.tolist(), strict=True)]


def _token_logprobs(token_id: int, logprobs: Logprobs, row: int, asked: int | None) -> TokenLogprobs:
    """The token at a place, and as many of the most likely ones as were `asked` for; -1: all that there are."""
    values: Any = logprobs
    num_top = values.top_ids.shape[1] if asked == -1 else asked or 0
    return TokenLogprobs(
        token_id,
        float(values.logprob[row]),
        int(values.rank[row]),
        values.top_ids[row, :num_top].tolist(),
        values.top_logprobs[row, :num_top].tolist(),
    )
