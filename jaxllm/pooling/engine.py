"""The engine of pooling models: token ids in, vectors and scores out. Used like `jaxllm.engine.engine.Engine`."""

import dataclasses
import time
from collections.abc import Iterable

import msgspec
import numpy as np
from msgspec.structs import replace

from jaxllm.adapters.adapters import Adapters
from jaxllm.adapters.control import AdapterControl
from jaxllm.config import EngineConfig
from jaxllm.config.engine_info import EngineInfo, PoolingInfo
from jaxllm.config.progress import Progress, silent
from jaxllm.engine.features.faults import is_of_one_request, log_fault
from jaxllm.engine.inspection import EngineSnapshot
from jaxllm.engine.loop import StepLoop, describe
from jaxllm.engine.stats import StepStats
from jaxllm.errors import JaxLLMError, RequestError, RequestFaultError, fault_message
from jaxllm.pooling.build import build_pooling_runner
from jaxllm.pooling.limits import PoolingLimits
from jaxllm.pooling.queue import PoolingQueue
from jaxllm.pooling.request import PoolingRequest
from jaxllm.pooling.resolved import ResolvedPoolingConfig, resolve_pooling_config
from jaxllm.pooling.runner import DispatchedTexts, PoolingRunner
from jaxllm.pooling.waiting import AdapterWaiting, make_adapters
from jaxllm.pooling.waiting_media import MediaWaiting
from jaxllm.requests.media import FIELD as MEDIA
from jaxllm.requests.outputs import EngineOutput
from jaxllm.requests.request import as_request_ids


class PoolingEngine(StepLoop[DispatchedTexts]):
    """Pools whole texts, as many in a step as fit its budget of tokens.

    Not thread-safe: one thread adds requests, steps and takes the outputs.
    """

    runner: PoolingRunner

    def __init__(self, resolved: ResolvedPoolingConfig, runner: PoolingRunner) -> None:
        config = resolved.common.config
        scheduler = config.scheduler
        super().__init__(_describe(resolved, runner.num_shapes), runner, config)
        self._limits = PoolingLimits.of(self.info)
        self._queue = PoolingQueue(
            max_num_seqs=resolved.common.max_num_seqs,
            max_num_batched_tokens=resolved.common.max_num_batched_tokens,
            by_priority=scheduler.scheduling_policy == "priority",
        )
        self._aborted: set[str] = set()
        self.adapters: Adapters[PoolingRequest] | None = None
        self._waiting: AdapterWaiting | None = None
        if resolved.common.adapters is not None:
            self.adapters = make_adapters(resolved, runner)
            self._waiting = AdapterWaiting(self.adapters)
            self.on_close.append(self.adapters.close)
        self._media = MediaWaiting.of(resolved, runner)
        self.control = AdapterControl(self)

    @classmethod
    def from_config(cls, config: EngineConfig, progress: Progress = silent) -> "PoolingEngine":
        """Find the model, load its weights and compile every step shape.

        Raises:
            ConfigError: an option or the checkpoint is wrong.
        """
        resolved = resolve_pooling_config(config)
        if resolved.common.platform != "cpu":
            # Only here: a start on CPU need not wait for the kernels' test cases.
            from jaxllm.executor.kernels.verification import verify_kernels

            resolved = dataclasses.replace(resolved, common=verify_kernels(resolved.common, samples=False))
        return cls(resolved, build_pooling_runner(resolved, progress))

    def add_request(self, request: PoolingRequest) -> None:
        """Queue a request. Raises `RequestError`, and queues nothing, when it cannot be served."""
        try:
            self._limits.check(request)
        except BaseException as error:
            if isinstance(error, JaxLLMError) or not is_of_one_request(error):
                raise
            raise RequestFaultError(fault_message(request.request_id)) from error
        if request.params.task is None:
            assert self.info.pooling is not None
            request.params = replace(request.params, task=self.info.pooling.tasks[0])
        if request.lora_request is None or self._waiting is None:
            self._encode_or_queue(request)
        else:
            self._waiting.add(request)
            self._take_adapted()

    def _encode_or_queue(self, request: PoolingRequest) -> None:
        if request.media is None or self._media is None:
            self._queue.add(request)
        else:
            self._media.add(request)

    def _take_adapted(self) -> None:
        """Let the texts go on that have their adapter now, and end those that cannot have it."""
        for each in () if self._waiting is None else self._waiting.ready():
            if each.error is None:
                self._encode_or_queue(each.request)
            else:
                self._ended.append(_refused(each.request.request_id, each.error, "lora_request"))

    def _take_encoded(self) -> None:
        """Queue the texts whose images are encoded now, and end those whose are not to be."""
        for each in () if self._media is None else self._media.ready():
            if each.error is None:
                self._queue.add(each.request)
                continue
            if self._waiting is not None:
                self._waiting.ended(each.request)
            self._ended.append(_refused(each.request.request_id, each.error, MEDIA))

    def abort_request(self, request_ids: str | Iterable[str]) -> None:
        """End requests early; the next step's outputs say so. Unknown or finished ones are ignored."""
        names = as_request_ids(request_ids)
        running = {each.request_id for _, step in self._under_way for each in step.requests}
        queued = self._queue.remove(names)
        if self._media is not None:
            for each in queued:
                self._media.release(each)
            queued += self._media.remove(names)
        ended = [each.request_id for each in queued]
        if self._waiting is not None:
            for each in queued:
                self._waiting.ended(each)
            ended += self._waiting.remove(names)
        ended += [name for name in names if name in running - self._aborted]
        self._aborted.update(running.intersection(names))
        self._ended += [EngineOutput(name, [], finish_reason="abort") for name in ended]

    def finish_request(self, request_id: str, stop_reason: str) -> None:
        """The options that only generated text has."""
        raise AssertionError(f"request {request_id} generates nothing that {stop_reason!r} could end")

    def has_unfinished_requests(self) -> bool:
        """Whether `step` has anything to do."""
        return bool(len(self._queue) or self._under_way or self._ended or self._waiting or self._media)

    def unfinished_ids(self) -> set[str]:
        """Ids of the requests that wait or run."""
        running = {each.request_id for _, step in self._under_way for each in step.requests}
        waiting = set().union(*(held.ids() for held in (self._waiting, self._media) if held is not None))
        return self._queue.ids() | waiting | (running - self._aborted)

    def _start(self) -> bool:
        self._take_adapted()
        self._take_encoded()
        if not len(self._queue):
            if self._waiting and not self._media and not self._under_way and not self._ended:
                self._waiting.wait()
            return False
        began, texts = time.monotonic(), self._queue.take()
        self._under_way.append((began, self.runner.dispatch(texts)))
        if self._media is not None:
            for each in texts:
                self._media.release(each)
        return True

    def _complete(self, began: float, step: DispatchedTexts) -> list[EngineOutput]:
        outputs = []
        for request, data in zip(step.requests, self.runner.collect(step), strict=True):
            if self._waiting is not None:
                self._waiting.ended(request)
            if request.request_id in self._aborted:
                self._aborted.remove(request.request_id)
            elif isinstance(data, BaseException):
                log_fault(request.request_id, data)
                outputs.append(_fault(request.request_id))
            else:
                outputs.append(_output(request.request_id, data, began))
        self._step = StepStats(
            num_steps=1,
            num_rows=len(step.requests),
            num_tokens=step.num_tokens,
            bucket_tokens=step.bucket.tokens,
            preemptions=(0,) * len(outputs),
        )
        return outputs

    def stats(self) -> StepStats:
        """The figures of the last step, and the present state."""
        running = sum(len(step.requests) for _, step in self._under_way)
        return replace(
            self._step,
            step_seconds=self._step_seconds,
            num_running=running,
            num_waiting=len(self._queue) + len(self._waiting or ()) + len(self._media or ()),
            num_compilations=self.runner.watch.count,
            image_queries=0 if self._media is None else self._media.pool.num_queries,
            image_hits=0 if self._media is None else self._media.pool.num_hits,
        )

    def live_view(self) -> str:
        """There are no pages, and steps are not recorded."""
        return "{}"

    def model_view(self) -> str:
        """Nothing is told of the programs of poolers."""
        return "{}"

    def debug_state(self) -> str:
        """`EngineSnapshot` as JSON; a text has no state but that it waits, or is in a step."""
        stats = self.stats()
        state = EngineSnapshot(
            running=stats.num_running, waiting=stats.num_waiting, steps_in_flight=len(self._under_way)
        )
        return msgspec.json.encode(state).decode()

    def reset_prefix_cache(self) -> bool:
        """There is none to forget."""
        return True


def _output(request_id: str, data: np.ndarray, began: float) -> EngineOutput:
    return EngineOutput(request_id, [], finish_reason="stop", scheduled_time=began, data=data)


def _fault(request_id: str) -> EngineOutput:
    return EngineOutput(request_id, [], finish_reason="abort", refusal=fault_message(request_id), is_fault=True)


def _refused(request_id: str, error: JaxLLMError, field: str) -> EngineOutput:
    """The output for a request that is not served because of what it has in this field."""
    parameter = error.parameter if isinstance(error, RequestError) else None
    return EngineOutput(
        request_id,
        [],
        finish_reason="abort",
        refusal=str(error),
        refused_parameter=parameter or field,
        is_fault=isinstance(error, RequestFaultError),
    )


def _describe(resolved: ResolvedPoolingConfig, num_shapes: int) -> EngineInfo:
    settings, common = resolved.settings, resolved.common
    pooling = PoolingInfo(
        tasks=settings.tasks,
        pooling_type=settings.pooling_type,
        size=resolved.size,
        labels=settings.labels,
        matryoshka=settings.matryoshka,
        answers=settings.answers,
        most_labels=max(settings.num_labels or 0, common.config.lora.max_lora_cls_labels or 0),
    )
    info = describe(common, num_shapes, pooling=pooling)
    if info.images is None:
        return info
    # Texts are read whole.
    images = replace(info.images, longest_span=common.span_within(common.max_model_len))
    return replace(info, images=images)
