"""When the next step waits for the one under way, so that another owner's request need not wait for both."""

import time
from collections.abc import Callable

from jaxllm.requests.owners import Owner
from jaxllm.scheduler.plan import StepPlan

LONG_STEP_SECONDS = 0.02
"""A step from which on waiting costs little: what the host does between two steps takes a millisecond or two."""

OWNERS_SECONDS = 600.0
"""For so long after a change of owners there are several of them."""


class OverlapPolicy:
    """Knows whether several owners send requests, and how long steps take.

    A step that is scheduled while another runs begins with whoever is there by then. If both compute long prompts, a
    request that comes meanwhile waits for two steps.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._owner: Owner | None = None
        self._several_until = 0.0
        self._seconds: dict[int, float] = {}  # of steps with prompts, by their shapes' tokens

    def on_request(self, owner: Owner) -> None:
        """A request of this owner has come."""
        if self._owner is not None and owner.name != self._owner.name:
            self._several_until = self._clock() + OWNERS_SECONDS
        self._owner = owner

    def on_step(self, bucket_tokens: int, seconds: float) -> None:
        """A step with prompts, of a shape of so many tokens, has taken so long."""
        self._seconds[bucket_tokens] = (self._seconds.get(bucket_tokens, seconds) + seconds) / 2

    def must_wait(self, plan: StepPlan, bucket_tokens: int) -> bool:
        """Whether the step after this one, which is under way, is to be scheduled when it has ended."""
        return (
            plan.num_decodes < plan.num_rows
            and self._seconds.get(bucket_tokens, 0.0) > LONG_STEP_SECONDS
            and self._clock() < self._several_until
        )
