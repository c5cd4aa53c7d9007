"""What an engine tells those who take part in its steps."""

from typing import ClassVar

from jaxllm.outputs import EngineOutput
from jaxllm.request import Request
from jaxllm.runtime.runner import Dispatched, StepResult
from jaxllm.scheduler.plan import StepPlan


class Collaborator:
    """Takes part in the steps of an engine, for requests that need more than one sampled token after another.

    Its methods are the events of a step, in their order. They are called while one of its `requests` is unfinished, and
    do nothing unless a subclass says otherwise.
    """

    holds: ClassVar[bool] = False
    """Whether its requests wait in the scheduler until it releases them."""

    def __init__(self) -> None:
        self.requests: set[Request] = set()
        """The unfinished requests that concern it."""

    def concerns(self, request: Request) -> bool:
        """Whether to take part for this request."""
        raise NotImplementedError

    def prepares(self, request: Request) -> None:
        """A request that concerns it is about to be queued."""

    def added(self, request: Request) -> None:
        """A request that concerns it is queued."""
        self.requests.add(request)

    def ended(self, request: Request) -> None:
        """A request has ended; it may be one that does not concern it."""
        self.requests.discard(request)

    def begins(self) -> None:
        """A step of the engine begins."""

    def before_schedule(self, last: Dispatched) -> None:
        """The next step is about to be scheduled, behind this one, which is under way."""

    def scheduled(self, plan: StepPlan) -> None:
        """A step is scheduled, and about to be dispatched."""

    def before_collect(self, step: Dispatched) -> None:
        """The engine is about to wait for a step. All steps before it are collected."""

    def collected(self, step: Dispatched, result: StepResult) -> None:
        """The results of a step are there; the scheduler has not taken its tokens yet."""

    def updated(self, step: Dispatched) -> list[Request]:
        """The scheduler has taken the tokens. Returns requests that were ended because of them, beside its own."""
        del step
        return []

    def reported(self, plan: StepPlan, result: StepResult, outputs: list[EngineOutput]) -> None:
        """There is an output for each row that samples; it may add to them."""

    def idle(self) -> None:
        """There is nothing to compute."""

    def close(self) -> None:
        """The engine is closed."""
