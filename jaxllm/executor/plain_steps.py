"""Steps without drafts of an engine whose devices make some: programs in which the drafter has no part.

While the drafter rests, steps of such an engine are those of one without it. They leave alone what the drafter keeps.
"""

from typing import Any

import jax

from jaxllm.executor.compile.buckets import Bucket, Buckets
from jaxllm.executor.device_calls import DeviceCalls
from jaxllm.executor.program_table import PLAIN_STEP
from jaxllm.executor.sampler.table import SamplingTable
from jaxllm.executor.step_inputs import StepShape
from jaxllm.executor.step_packer import StepPacker
from jaxllm.scheduler.plan import StepPlan


class PlainSteps:
    """Which steps need no drafter, and the calls of their programs."""

    def __init__(
        self, calls: DeviceCalls, shape: StepShape, buckets: Buckets, sampling: SamplingTable, num_slots: int
    ) -> None:
        """`shape` is that of the steps with the drafter."""
        self._calls = calls
        self._buckets = frozenset(bucket for bucket in buckets.all if calls.executables.has(bucket.plain_name))
        self.packer = StepPacker(shape.plain, buckets, sampling, num_slots)
        """Packs them."""

    def is_made(self, bucket: Bucket) -> bool:
        """Whether there is a program of this shape, and it is made."""
        return self._calls.executables.is_made(bucket.plain_name)

    def takes(self, plan: StepPlan, bucket: Bucket, *, is_complete: bool) -> bool:
        """Whether to run this step in the program of its shape. `is_complete`: all programs are made."""
        if plan.is_followed or bucket not in self._buckets or plan.has_drafts:
            return False
        return is_complete or self.is_made(bucket)

    def call(self, bucket: Bucket, packed: Any) -> Any:
        """Start a step; see `DeviceCalls.step`."""
        return self._calls.call_sized(PLAIN_STEP, bucket.tokens, packed)

    def run_empty(self, bucket: Bucket) -> None:
        """Run one that computes nothing, and wait for it."""
        sampled = self.call(bucket, self.packer.empty(bucket))
        jax.block_until_ready((sampled, self._calls.state))
