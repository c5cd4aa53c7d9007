"""What running requests compute in a step: decodes first, then prompts in order."""

import numpy as np

from jaxllm.kv.pages import Int32Array
from jaxllm.scheduler.fairness import in_order
from jaxllm.scheduler.groups import SequenceGroups
from jaxllm.scheduler.queue import RunningOrder
from jaxllm.scheduler.shares import Shares
from jaxllm.scheduler.snapshots import StateSnapshots
from jaxllm.scheduler.spans import WholeSpans
from jaxllm.scheduler.table import RequestTable


class RunningRows:
    """Picks the rows of a step that running requests get."""

    def __init__(
        self,
        table: RequestTable,
        running: RunningOrder,
        shares: Shares,
        groups: SequenceGroups,
        *,
        budget: int,
        max_chunk: int,
        stages: int,
        snapshots: StateSnapshots | None,
        spans: WholeSpans | None,
    ) -> None:
        """`budget` is of one step, `max_chunk` of one prompt in it, both in tokens; for `stages` see `Scheduler`."""
        self._table, self._running, self._shares, self._groups = table, running, shares, groups
        self._budget, self._max_chunk, self._stages = budget, max_chunk, stages
        self._snapshots, self._spans = snapshots, spans

    def pick(self) -> tuple[Int32Array, Int32Array, int] | None:
        """Slots and new tokens of the running requests that fit the budget, decodes first, and how many those are.

        With several owners prompts are there with all they want, to be divided.
        None when a group needs more pages before it can go on.
        """
        if self._groups.running and not self._groups.settle():
            return None
        table, slots = self._table, self._running.slots
        behind = table.behind(slots)
        if self._stages > 1:
            behind = self._limit_decodes(slots, behind)
        decodes = behind == 1
        num_decodes = int(np.count_nonzero(decodes))
        if num_decodes == len(slots):
            return slots, behind, num_decodes
        prefills = behind > 1
        chunks = np.minimum(behind[prefills], self._max_chunk)
        if self._snapshots is not None:
            chunks = self._snapshots.cut(slots[prefills], chunks)
        if self._spans is not None:
            chunks = self._spans.wanted(slots[prefills], chunks)
        if self._shares.contended:
            # They are divided later, when it is known who comes.
            counts = chunks
        elif self._spans is not None:
            counts = self._spans.in_order(slots[prefills], chunks, self._budget - num_decodes)
        else:
            counts = in_order(chunks, self._budget - num_decodes)
        fits = counts > 0
        return (
            np.concatenate([slots[decodes], slots[prefills][fits]]),
            np.concatenate([behind[decodes], counts[fits]]).astype(np.int32),
            num_decodes,
        )

    def _limit_decodes(self, slots: Int32Array, behind: Int32Array) -> Int32Array:
        """`behind` without requests whose token is on its way, and with no more decodes than the other stages get."""
        behind = np.where(self._table.num_pending[slots] > 0, 0, behind)
        decodes = np.flatnonzero(behind == 1)
        behind[decodes[-(-len(slots) // self._stages) :]] = 0
        return behind
