"""The hooks by which features take part in an engine's steps."""

from typing import ClassVar

from jaxllm.engine.features.faults import Faults
from jaxllm.executor.runner import Dispatched, StepResult
from jaxllm.requests.outputs import EngineOutput
from jaxllm.requests.request import Request
from jaxllm.scheduler.holds import HoldReason
from jaxllm.scheduler.plan import StepPlan


class StepFeature:
    """Takes part in the steps of an engine, for requests that need more than one sampled token after another.

    Its hooks are the events of a step, in their order. They are called while one of its `requests` is unfinished, and
    do nothing unless a subclass says otherwise. `Features` calls them: an exception ends requests of this feature and
    nothing else. Work for one request belongs under `self.faults.guard(request)`, so that it ends that request alone.
    """

    hold_reason: ClassVar[HoldReason] = ""
    """If any: its requests may not run before it has released them from this reason, see `Scheduler.release`."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.requests: set[Request] = set()
        """The unfinished requests that it handles. `Features` adds and removes them."""

    def handles(self, request: Request) -> bool:
        """Whether to take part for this request."""
        raise NotImplementedError

    def prepare(self, request: Request) -> None:
        """A request that it handles is about to be queued."""

    def on_added(self, request: Request) -> None:
        """A request that it handles is queued."""

    def on_ended(self, request: Request) -> None:
        """A request has ended; it may be one that it does not handle."""

    def on_step_begin(self) -> None:
        """A step of the engine begins."""

    def before_schedule(self, last: Dispatched) -> None:
        """The next step is about to be scheduled; this one, the last, is still in flight."""

    def on_scheduled(self, plan: StepPlan) -> None:
        """A step is scheduled, and about to be dispatched."""

    def before_collect(self, step: Dispatched) -> None:
        """The engine is about to wait for a step. All steps before it are collected."""

    def on_collected(self, step: Dispatched, result: StepResult) -> None:
        """The results of a step are there; the scheduler has not taken its tokens yet."""

    def on_accept(self, step: Dispatched) -> list[Request]:
        """The scheduler has taken the tokens. Returns requests that this hook has finished."""
        del step
        return []

    def on_outputs(self, plan: StepPlan, result: StepResult, outputs: list[EngineOutput]) -> None:
        """There is an output for each row that samples; it may add to them."""

    def on_idle(self) -> None:
        """There is nothing to compute."""

    def close(self) -> None:
        """The engine is closed."""
