"""Where groups of sequences meet slots and pages: they are opened, filled from one another, and closed."""

import numpy as np

from jaxllm.kv.manager import KVManager
from jaxllm.kv.pages import NULL_PAGE
from jaxllm.requests.request import SequenceGroup
from jaxllm.scheduler.plan import StepPlan
from jaxllm.scheduler.table import RequestTable


class SequenceGroups:
    """The groups that run, and the pages of their sequences.

    A sequence that goes on with another's tokens shares its full pages, which nobody writes any more, and gets a copy
    of the one that is partly filled. Its `RequestTable.max_total` is always one more than its known tokens, so that it
    is computed up to its last token and then waits for the others of its group.
    """

    def __init__(self, table: RequestTable, pages: KVManager) -> None:
        self._table = table
        self._pages = pages
        self.running: dict[SequenceGroup, None] = {}
        """Those that run, in the order of their admission."""

    def open(self, group: SequenceGroup) -> None:
        """Begin with the prompt, which the leader holds already; the others have their slots and nothing in them."""
        self.running[group] = None
        self._table.max_total[group.leader.slot] = len(group.leader.prompt_token_ids) + 1
        for sequence in group.sequences[1:]:
            self._table.insert(sequence, np.zeros(0, np.int32), 0)
            self._table.clear(sequence.slot)

    def close(self, group: SequenceGroup) -> None:
        """It runs no more; slots and pages are the caller's."""
        del self.running[group]

    def settle(self) -> bool:
        """Fill the sequences of every group in which that is due; False when pages are missing for it."""
        return all(self._settle(group) for group in self.running if group.phase == "move")

    def _settle(self, group: SequenceGroup) -> bool:
        table, size = self._table, self._pages.block_size
        slots = [sequence.slot for sequence in group.sequences]
        computed = int(table.num_computed[group.sequences[group.sources[0]].slot])
        known = len(group.leader.prompt_token_ids) + group.num_output_tokens
        moving = [index for index, source in enumerate(group.sources) if source != index]
        for index in moving:
            # What they hold leads nowhere; this may be what the others need. Done once more, it does nothing.
            self._pages.release(table.pages(slots[index]))
            table.clear(slots[index])
        groups = self._pages.groups
        wanted = [groups.end(each, computed, known) for each in groups.all]
        held = [
            [computed // size] * len(wanted) if index in moving else table.ends[:, slot].tolist()
            for index, slot in enumerate(slots)
        ]
        missing = [[max(end - own, 0) for end, own in zip(wanted, each, strict=True)] for each in held]
        pages = self._pages.grow(int(sum(np.dot(each, [group.count for group in groups.all]) for each in missing)))
        if pages is None:
            return False
        for index in moving:
            self._share(group, index, computed)
        for index, slot in enumerate(slots):
            for number, (begin, count) in enumerate(zip(held[index], missing[index], strict=True)):
                for place in groups.all[number].tables:
                    own, pages = pages[:count], pages[count:]
                    table.tables(slot)[place, begin : begin + count] = own
                table.ends[number, slot] = begin + count
            self._extend(group, index, computed, known)
        group.phase = "run"
        return True

    def _share(self, group: SequenceGroup, index: int, computed: int) -> None:
        """Let a sequence begin with what its source has computed."""
        table, full = self._table, computed // self._pages.block_size
        request, source = group.sequences[index], group.sequences[group.sources[index]]
        shared = table.tables(source.slot)[:, :full]
        table.tables(request.slot)[:, :full] = shared
        self._pages.share(shared[shared != NULL_PAGE])
        table.begins[:, request.slot] = table.begins[:, source.slot]
        table.token_ids[request.slot, :computed] = table.token_ids[source.slot, :computed]
        table.num_prompt_tokens[request.slot] = len(request.prompt_token_ids)
        table.num_computed[request.slot] = computed
        request.page_hashes = source.page_hashes[:full]

    def _extend(self, group: SequenceGroup, index: int, computed: int, known: int) -> None:
        """Write down the tokens that a sequence goes on with, and what the device must do for it."""
        table, size = self._table, self._pages.block_size
        slot, source = group.sequences[index].slot, group.sequences[group.sources[index]].slot
        table.token_ids[slot, computed:known] = group.tokens(index, known - computed)
        table.num_tokens[slot] = known
        table.max_total[slot] = known + 1
        if slot != source and computed % size:
            froms, tos = (table.tables(each)[:, computed // size].tolist() for each in (source, slot))
            group.copies += zip(froms, tos, strict=True)
        if slot != source and self._pages.groups.has_states:
            group.forks.append((source, slot))
        # The step itself brings the page of a row's last token; whatever else is new must be told.
        if slot != source or known - computed > 1:
            group.moved.append(slot)

    def tell(self, plan: StepPlan) -> None:
        """Say in the plan of a step which pages and states are to be copied, and which slots' pages have changed."""
        copies: list[tuple[int, int]] = []
        for group in self.running:
            copies += group.copies
            plan.moved += group.moved
            plan.states_before += group.forks
            group.forget_changes()
        plan.copies = np.array(copies, np.int32) if copies else None
