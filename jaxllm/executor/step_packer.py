"""A step's plan as the one array that its executable takes, and where the plan's rows are in what comes back.

With data shards every one has a part of the array, and of all that has rows: the same number of places for each.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from jaxllm.executor.compile.buckets import Bucket, Buckets
from jaxllm.executor.sampler.rows import INT_FIELDS, UNCOUNTED
from jaxllm.executor.sampler.table import SamplingTable
from jaxllm.executor.step_inputs import STEP_INPUTS, HostStep, StepShape, draft_places, fill
from jaxllm.scheduler.plan import StepPlan
from jaxllm.scheduler.table import RequestTable

Int32Array = npt.NDArray[np.int32]

_SLOT, _BITS = INT_FIELDS.index("slot"), INT_FIELDS.index("bits")


class StepPacker:
    """Packs the plans of an engine. `num_slots` are those of all data shards together."""

    def __init__(self, shape: StepShape, buckets: Buckets, sampling: SamplingTable, num_slots: int) -> None:
        self._shape, self._sampling = shape, sampling
        self._layouts = {bucket: shape.layout(bucket) for bucket in buckets.all}
        self._num_sampled = {bucket: shape.num_sampled(bucket) for bucket in buckets.all}
        self._inputs = [each for each in STEP_INPUTS if each.is_present(shape)]
        self._most_tokens = buckets.largest.tokens
        self.slots_per_shard = num_slots // shape.shards

    def empty(self, bucket: Bucket) -> Int32Array:
        """A step that computes nothing."""
        return np.zeros(self._shape.shards * self._layouts[bucket].size, np.int32)

    def pack(self, plan: StepPlan, table: RequestTable, bucket: Bucket, samples: npt.NDArray[np.bool_]) -> Int32Array:
        """The packed input of a plan, in which the rows in `samples` (bool [n]) get a token."""
        if not plan.parts:
            return self._pack(plan, table, bucket, samples)
        packed, first = [], 0
        for part in plan.parts:
            if part is None:
                packed.append(np.zeros(self._layouts[bucket].size, np.int32))
                continue
            last = first + part.num_rows
            packed.append(self._pack(part, table, bucket, samples[first:last]))
            first = last
        return np.concatenate(packed)

    def _pack(self, plan: StepPlan, table: RequestTable, bucket: Bucket, samples: npt.NDArray[np.bool_]) -> Int32Array:
        """Pack the plan of one shard."""
        packed, fields = self._layouts[bucket].host_buffer()
        steps, size = output_lengths(plan, table), self._num_sampled[bucket]
        if plan.num_drafts is None:
            ints, floats = self._sampling.pack(plan.slots, steps, samples, size)
        else:
            ints, floats = self._with_drafts(plan, plan.num_drafts, steps, samples, size)
        step = HostStep(
            plan,
            table,
            bucket,
            samples,
            (self.local_slots(ints), floats),
            page_size=self._shape.page_size,
            slots_per_shard=self.slots_per_shard,
        )
        fill(self._inputs, fields, step)
        return packed

    def _with_drafts(
        self, plan: StepPlan, num_drafts: Int32Array, steps: Int32Array, samples: npt.NDArray[np.bool_], size: int
    ) -> tuple[Int32Array, npt.NDArray[np.float32]]:
        """The parameters of the tokens that a shard samples, see `SamplingTable.pack`, where rows have several."""
        rows = np.repeat(np.arange(plan.num_rows), 1 + num_drafts)
        ints, floats = self._sampling.pack(plan.slots[rows], steps[rows] + draft_places(plan), samples[rows], size)
        # Nobody knows yet which tokens of rows with drafts will be accepted.
        ints[_BITS, : len(rows)] |= np.where(num_drafts[rows] > 0, UNCOUNTED, 0)
        return ints, floats

    def local_slots(self, ints: Int32Array) -> Int32Array:
        """Parameters of rows (see `SamplingTable.pack`) whose slots are counted within each shard."""
        if self._shape.shards > 1:
            ints[_SLOT] %= self.slots_per_shard
        return ints

    def last_hidden(self, plan: StepPlan) -> Int32Array:
        """Where the hidden state of each row's last token is in `DeviceState.hidden`, int32 [n]."""
        lasts = [np.cumsum(part.num_new_tokens) - 1 for part in active_shard_plans(plan)]
        return self._places(plan, self._most_tokens, lasts)

    def result_rows(self, plan: StepPlan, bucket: Bucket) -> Int32Array | slice:
        """Which of the step's results are those of the plan's rows: one each, and one for each draft."""
        if not plan.parts:
            return slice(num_results(plan))
        own = [np.arange(num_results(part)) for part in active_shard_plans(plan)]
        return self._places(plan, self._shape.num_sampled(bucket), own)

    def own_rows(self, plan: StepPlan, bucket: Bucket) -> Int32Array | slice:
        """Which of the step's rows are those of the plan."""
        if not plan.parts:
            return slice(plan.num_rows)
        return self._places(plan, bucket.rows, [np.arange(part.num_rows) for part in active_shard_plans(plan)])

    def _places(self, plan: StepPlan, size: int, own: list[np.ndarray]) -> Int32Array:
        """Places in all shards' arrays of so many, from those in each shard's own."""
        if not plan.parts:
            return own[0].astype(np.int32)
        shards = [shard for shard, part in enumerate(plan.parts) if part is not None]
        places = np.concatenate([places + shard * size for shard, places in zip(shards, own, strict=True)])
        return places.astype(np.int32)

    def copies(self, plan: StepPlan) -> tuple[Int32Array, Int32Array] | None:
        """Pages to copy and their number, as "copy_pages" takes them; None when there are none."""
        if not plan.parts and plan.copies is None:
            return None
        parts = [None if part is None else part.copies for part in plan.by_shard]
        if all(part is None for part in parts):
            return None
        pages = np.zeros((len(parts), 2, self.slots_per_shard * self._shape.num_tables), np.int32)
        for own, part in zip(pages, parts, strict=True):
            if part is not None:
                own[:, : len(part)] = part.T
        counts = np.array([0 if part is None else len(part) for part in parts], np.int32)
        return pages.reshape(-1, pages.shape[2]), counts if plan.parts else counts[0]

    def by_shard(self, hidden: Int32Array, at_once: int) -> Iterator[list[Int32Array]]:
        """Which of these places of hidden states, int32 [n], the calls for `at_once` of each shard take, by shard."""
        shards = hidden // self._most_tokens
        own = [np.flatnonzero(shards == shard).astype(np.int32) for shard in range(self._shape.shards)]
        for first in range(0, max(map(len, own)), at_once):
            yield [part[first : first + at_once] for part in own]

    def local_hidden(self, hidden: Int32Array) -> Int32Array:
        """The same positions, each in its own shard."""
        return hidden % self._most_tokens


def active_shard_plans(plan: StepPlan) -> list[StepPlan]:
    """The plans of the shards that have something to do."""
    return [part for part in plan.by_shard if part is not None]


def output_lengths(plan: StepPlan, table: RequestTable) -> Int32Array:
    """Output tokens before the first that each row samples, int32 [n]; means nothing for rows that do not."""
    steps: Int32Array = plan.starts + plan.num_new_tokens - table.num_prompt_tokens[plan.slots]
    return steps if plan.num_drafts is None else steps - plan.num_drafts


def num_results(plan: StepPlan) -> int:
    """Tokens that a step samples for the rows of a plan."""
    return plan.num_rows + (0 if plan.num_drafts is None else int(plan.num_drafts.sum()))
