"""The prefix cache as one knows it who only reads its events."""

from collections import Counter
from collections.abc import Iterable
from hashlib import sha256

from jaxllm.kv.events import Cleared, Event, KVEvents, Removed, Stored
from jaxllm.kv.manager import KVManager
from jaxllm.kv.prefix import root_digest


class Replica:
    """Counts copies of pages by table, digest and medium, as the contract for consumers says."""

    def __init__(self, manager: KVManager) -> None:
        """Of a manager that is empty."""
        self._manager = manager
        self._events = KVEvents(manager.block_size, manager.groups.num_tables)
        manager.record(self._events)
        self.copies: Counter[tuple[int, bytes, str]] = Counter()

    def check(self) -> list[Event]:
        """Read what is new, and assert that it leads to what the cache holds."""
        events = self._events.take()
        self.apply(events)
        manager = self._manager
        tables = enumerate(manager._cache._page_of)
        held: set[tuple[int, bytes, str]] = {(table, digest, "GPU") for table, pages in tables for digest in pages}
        if manager.snapshots is not None:
            pool = manager.snapshots
            held |= {(manager.groups.num_tables, digest, "GPU") for digest in (*pool._slot_of, *pool._spare)}
        if manager.tier is not None:
            copies = (copy for entry in manager.tier.host._entries.values() for copy in entry.values())
            held |= {(copy.part, copy.digest, "CPU") for copy in copies if copy.state == "ready"}
        assert set(self.copies) == held
        assert set(self.copies.values()) <= {1}
        return events

    def apply(self, events: Iterable[Event]) -> None:
        for event in events:
            match event:
                case Stored(table, digests):
                    self._check_chain(event)
                    self.copies.update((table, digest, event.medium) for digest in digests)
                case Removed(table, digests, medium):
                    for digest in digests:
                        assert self.copies.pop((table, digest, medium)) == 1, "removed what was not there"
                case Cleared():
                    self.copies.clear()

    def _check_chain(self, event: Stored) -> None:
        """Without salts and images, digests follow from tokens."""
        if not len(event.token_ids):
            assert event.table == self._manager.groups.num_tables
            return
        size = self._manager.block_size
        assert len(event.token_ids) == size * len(event.digests)
        before = root_digest(None) if event.parent is None else event.parent
        for number, digest in enumerate(event.digests):
            tokens = event.token_ids[number * size : (number + 1) * size].tobytes()
            if event.keys is None or event.keys[number] is None:
                assert digest == sha256(before + tokens).digest()
            before = digest
