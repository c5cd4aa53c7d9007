"""Where groups of sequences meet slots and pages: they are opened, filled from one another, and closed."""

import numpy as np

from jaxllm.kv.manager import KVManager
from jaxllm.kv.pages import Int32Array
from jaxllm.request import SequenceGroup
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
        held = [computed // size if index in moving else int(table.num_pages[slot]) for index, slot in enumerate(slots)]
        wanted = self._pages.pages_for(known)
        pages = self._pages.grow(sum(wanted - count for count in held))
        if pages is None:
            return False
        for index in moving:
            self._share(group, index, computed)
        for index, slot in enumerate(slots):
            own, pages = pages[: wanted - held[index]], pages[wanted - held[index] :]
            table.block_table[slot, held[index] : wanted] = own
            table.num_pages[slot] = wanted
            self._extend(group, index, computed, known)
        group.phase = "run"
        return True

    def _share(self, group: SequenceGroup, index: int, computed: int) -> None:
        """Let a sequence begin with what its source has computed."""
        table, full = self._table, computed // self._pages.block_size
        request, source = group.sequences[index], group.sequences[group.sources[index]]
        shared = table.pages(source.slot)[:full]
        self._pages.share(shared)
        table.block_table[request.slot, :full] = shared
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
            page = computed // size
            group.copies.append((int(table.block_table[source, page]), int(table.block_table[slot, page])))
        # The step itself brings the page of a row's last token; whatever else is new must be told.
        if slot != source or known - computed > 1:
            group.moved.append(slot)

    def take_changes(self) -> tuple[Int32Array | None, list[int]]:
        """Pages to copy, int32 [n, 2] from and to, and slots whose pages have changed, since the last call."""
        copies: list[tuple[int, int]] = []
        moved: list[int] = []
        for group in self.running:
            copies += group.copies
            moved += group.moved
            group.copies.clear()
            group.moved.clear()
        return (np.array(copies, np.int32) if copies else None), moved
