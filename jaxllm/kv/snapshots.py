"""Snapshots of recurrent states, found again by the digest of the tokens that led to them."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from jaxllm.kv.events import KVEvents


class SnapshotPool:
    """Slots from `first` on, `count` of them, each either blank, taken by a step under way, or cached under a digest.

    The state that a slot holds is that after the last token of a full page, and its digest that of the page. `take`
    prefers blank slots, then evicts the spare snapshot that is oldest, and only then one of the others: that which was
    used longest ago. A spare one that is found is spare no more. A snapshot that was found may be evicted at
    once: the device copies it before any later step writes it.
    """

    def __init__(self, first: int, count: int) -> None:
        self.first, self.count = first, count
        self._blank = list(range(first, first + count))[::-1]
        self._taken: set[int] = set()
        self._slot_of: OrderedDict[bytes, int] = OrderedDict()  # least recently used first
        self._spare: dict[bytes, int] = {}  # oldest first
        self.events: KVEvents | None = None
        """Where it is noted what can be found and what no more, if anywhere."""

    def __len__(self) -> int:
        """How many can be found."""
        return len(self._slot_of) + len(self._spare)

    def find(self, digest: bytes) -> int | None:
        """The slot of a snapshot, which counts as used now; None when there is none."""
        slot = self._spare.pop(digest, None)
        if slot is not None:
            self._slot_of[digest] = slot
            return slot
        slot = self._slot_of.get(digest)
        if slot is not None:
            self._slot_of.move_to_end(digest)
        return slot

    def slot_of(self, digest: bytes) -> int | None:
        """The slot of a snapshot, without counting as a use; None when there is none."""
        return self._spare.get(digest, self._slot_of.get(digest))

    def longest(self, digests: Sequence[bytes]) -> int:
        """How many of these pages the longest prefix has that ends with a snapshot."""
        counts = range(len(digests), 0, -1)
        return next((count for count in counts if self._has(digests[count - 1])), 0)

    def _has(self, digest: bytes) -> bool:
        return digest in self._slot_of or digest in self._spare

    def take(self) -> int | None:
        """A slot for a new snapshot, to be published or given back; None when all are taken."""
        if self._blank:
            slot = self._blank.pop()
        elif self._spare or self._slot_of:
            others = self._spare or self._slot_of
            slot = others.pop(oldest := next(iter(others)))
            if self.events is not None:
                self.events.state_removed(oldest)
        else:
            return None
        self._taken.add(slot)
        return slot

    def publish(self, digest: bytes, slot: int, *, spare: bool = False) -> None:
        """Let a slot that was taken be found. Where another has the same already, that one stays.

        One that is `spare` makes way before others.
        """
        self._taken.remove(slot)
        if self._has(digest):
            self._blank.append(slot)
            self.find(digest)
        else:
            (self._spare if spare else self._slot_of)[digest] = slot
            if self.events is not None:
                self.events.state_stored(digest)

    def give_back(self, slot: int) -> None:
        """What was to be written to a slot that was taken is of no use."""
        self._taken.remove(slot)
        self._blank.append(slot)

    def clear(self) -> None:
        """Forget all that can be found."""
        self._blank += [*self._slot_of.values(), *self._spare.values()]
        self._slot_of.clear()
        self._spare.clear()

    def check_integrity(self, taken: Iterable[int]) -> None:
        """Assert that every slot is exactly one of blank, cached and taken, the latter by whom it is known."""
        assert sorted(taken) == sorted(self._taken)
        every = [*self._blank, *self._taken, *self._slot_of.values(), *self._spare.values()]
        assert not self._slot_of.keys() & self._spare.keys()
        assert sorted(every) == list(range(self.first, self.first + self.count))
