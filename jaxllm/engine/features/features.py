"""The one place where the hooks of features are called, and where their exceptions end."""

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from jaxllm.engine.features.faults import Faults, is_of_one_request
from jaxllm.engine.features.feature import StepFeature
from jaxllm.executor.runner import Dispatched, StepResult
from jaxllm.requests.outputs import EngineOutput
from jaxllm.requests.request import Request
from jaxllm.scheduler.plan import StepPlan

logger = logging.getLogger(__name__)


class Features:
    """The features of an engine, and those of them that take part in its steps.

    An exception in a hook is recorded as the fault of the feature's requests in the step, or of all its requests where
    the hook is about no step. The other features, and requests of none, do not notice.
    """

    def __init__(self, every: Sequence[StepFeature], faults: Faults) -> None:
        self.every = tuple(every)
        self.active: tuple[StepFeature, ...] = ()
        """Features with an unfinished request. Replaced, never mutated."""
        self._faults = faults

    def prepare(self, request: Request) -> list[StepFeature]:
        """The features that handle a request, ready for it. Raises whatever they raise."""
        found = [each for each in self.every if each.handles(request)]
        for feature in found:
            feature.prepare(request)
        return found

    def add(self, request: Request, features: Sequence[StepFeature]) -> None:
        """A request is queued, and these features handle it."""
        for feature in features:
            feature.requests.add(request)
            with self._faults.guard(request):
                feature.on_added(request)
        if features:
            self._update()

    def end(self, requests: Iterable[Request]) -> None:
        """Requests have ended."""
        if not self.active:
            return
        for request in requests:
            for feature in self.active:
                feature.requests.discard(request)
                try:
                    feature.on_ended(request)
                except BaseException as error:
                    if not is_of_one_request(error):
                        raise
                    logger.exception("%s failed to release request %s", _name(feature), request.request_id)
        self._update()

    def _update(self) -> None:
        self.active = tuple([each for each in self.every if each.requests])

    # Hooks, for the features that were active when the step or its collection began.

    def on_step_begin(self) -> None:
        """See `StepFeature.on_step_begin`."""
        for feature in self.active:
            self._call(feature, feature.requests, feature.on_step_begin)

    def before_schedule(self, last: Dispatched) -> None:
        """See `StepFeature.before_schedule`."""
        for feature in self.active:
            self._call(feature, last.plan, feature.before_schedule, last)

    def on_scheduled(self, plan: StepPlan) -> None:
        """See `StepFeature.on_scheduled`."""
        for feature in self.active:
            self._call(feature, plan, feature.on_scheduled, plan)

    def before_collect(self, step: Dispatched) -> None:
        """See `StepFeature.before_collect`."""
        for feature in self.active:
            self._call(feature, step.plan, feature.before_collect, step)

    def on_collected(self, features: Sequence[StepFeature], step: Dispatched, result: StepResult) -> None:
        """See `StepFeature.on_collected`."""
        for feature in features:
            self._call(feature, step.plan, feature.on_collected, step, result)

    def on_accept(self, features: Sequence[StepFeature], step: Dispatched) -> list[Request]:
        """See `StepFeature.on_accept`."""
        finished: list[Request] = []
        for feature in features:
            finished += self._call(feature, step.plan, feature.on_accept, step) or ()
        return finished

    def on_outputs(
        self, features: Sequence[StepFeature], plan: StepPlan, result: StepResult, outputs: list[EngineOutput]
    ) -> None:
        """See `StepFeature.on_outputs`."""
        for feature in features:
            self._call(feature, plan, feature.on_outputs, plan, result, outputs)

    def on_idle(self) -> None:
        """See `StepFeature.on_idle`."""
        for feature in self.active:
            self._call(feature, feature.requests, feature.on_idle)

    def close(self) -> None:
        """See `StepFeature.close`."""
        for feature in self.every:
            feature.close()

    def _call(self, feature: StepFeature, concerned: StepPlan | Iterable[Request], hook: Any, *arguments: Any) -> Any:
        """Call a hook; None where it failed, which then ends the requests `concerned`."""
        try:
            return hook(*arguments)
        except BaseException as error:
            if not is_of_one_request(error):
                raise
            requests = concerned.requests if isinstance(concerned, StepPlan) else concerned
            leaders = {each if each.group is None else each.group.leader for each in requests}
            if not leaders & feature.requests:
                logger.exception("%s failed in a step that has none of its requests", _name(feature))
            for request in leaders & feature.requests:
                self._faults.record(request, error)
            return None


def _name(feature: StepFeature) -> str:
    return type(feature).__name__
