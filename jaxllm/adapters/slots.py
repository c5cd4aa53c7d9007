"""Which adapter is in which slot, and which request may run with it. Plain policy: no arrays, no devices.

A request waits until its adapter has a slot, and keeps the adapter there until it ends, preempted or not. A slot that
nobody uses goes to the adapter that has waited longest, in place of the one that was used longest ago. Where all are
used, one slot is drained for it: new requests for the adapter in that slot wait as well, so that those of adapters in
slots cannot keep others out for ever.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
User = TypeVar("User", bound=Hashable)


class WriteError(Exception):
    """An adapter could not be brought to a slot, and all other slots are as they were."""


class AdapterSlots(Generic[Key, User]):
    """Slots of adapters. `write` brings the adapter of a key to a slot, or raises `WriteError`."""

    def __init__(self, count: int, write: Callable[[int, Key], None]) -> None:
        self._write = write
        self._keys: list[Key | None] = [None] * count
        self._last_used = [0] * count
        self._users: Counter[int] = Counter()
        self._slot_of_user: dict[User, int] = {}
        self._waiting: dict[User, Key] = {}
        """In the order in which they have come."""
        self._draining: int | None = None
        self._pinned: set[Key] = set()
        self._clock, self._has_changed = 0, False

    @property
    def keys(self) -> list[Key]:
        """Adapters that have a slot."""
        return [key for key in self._keys if key is not None]

    def want(self, user: User, key: Key) -> None:
        """A request asks for an adapter that is on the host. `assign` will say when it has it."""
        self._waiting[user] = key
        self._has_changed = True

    def forget(self, user: User) -> None:
        """A request has ended, whether it has run or not."""
        self._waiting.pop(user, None)
        slot = self._slot_of_user.pop(user, None)
        if slot is not None:
            self._users[slot] -= 1
        self._has_changed = True

    def pin(self, key: Key) -> None:
        """Let an adapter keep the slot that it has, or gets."""
        self._pinned.add(key)

    def unpin(self, key: Key) -> None:
        """Let its slot go to others again."""
        self._pinned.discard(key)
        self._has_changed = True

    def drop(self, key: Key) -> None:
        """An adapter is not to be given to further requests. Those that run with it go on."""
        self.unpin(key)
        for slot, each in enumerate(self._keys):
            if each == key:
                self._keys[slot] = None

    def has_slot(self, user: User) -> bool:
        """Whether a request has the slot of its adapter."""
        return user in self._slot_of_user

    def assign(self) -> list[tuple[User, int | WriteError]]:
        """Give slots to those that wait, as far as possible. Returns the requests that may run, and their slots.

        A request whose adapter could not be written has an error in place of a slot, and is forgotten.
        """
        # Most steps change nothing, while many may wait.
        if not self._waiting or not self._has_changed:
            return []
        self._has_changed = False
        if all(key in self._keys for key in self._waiting.values()):
            self._draining = None  # Whoever it was for has ended.
        found: list[tuple[User, int | WriteError]] = []
        blocked: set[Key] = set()
        broken: dict[Key, WriteError] = {}
        for user, key in list(self._waiting.items()):
            if key in blocked:
                continue
            try:
                slot = self._slot_for(key) if key not in broken else None
            except WriteError as error:
                broken[key], slot = error, None
            if key in broken:
                del self._waiting[user]
                found.append((user, broken[key]))
                continue
            if slot is None:
                blocked.add(key)
                continue
            del self._waiting[user]
            self._slot_of_user[user] = slot
            self._users[slot] += 1
            self._clock += 1
            self._last_used[slot] = self._clock
            found.append((user, slot))
        return found

    def _slot_for(self, key: Key) -> int | None:
        """The slot with this adapter, which is brought there first if one is free; None while there is none."""
        slots = range(len(self._keys))
        for slot in slots:
            if self._keys[slot] == key:
                # The adapter in a slot that is drained comes back when others have had their turn.
                return slot if slot != self._draining else None
        free = [slot for slot in slots if not self._users[slot] and self._keys[slot] not in self._pinned]
        if not free:
            if self._draining is None:
                self._draining = self._least_used()
            return None
        slot = self._draining if self._draining in free else min(free, key=self._age)
        assert slot is not None
        self._draining = None  # Whoever has waited longest has a slot now.
        self._keys[slot] = None
        self._write(slot, key)
        self._keys[slot] = key
        return slot

    def _age(self, slot: int) -> tuple[bool, int]:
        return self._keys[slot] is not None, self._last_used[slot]

    def _least_used(self) -> int | None:
        """The slot that is likely to be free first; None where all keep what they have."""
        slots = [slot for slot, key in enumerate(self._keys) if key not in self._pinned]
        return min(slots, key=lambda slot: (self._users[slot], self._last_used[slot]), default=None)

    def check_integrity(self, unfinished: Iterable[User]) -> None:
        """Assert that users are counted, and that nobody waits and runs."""
        assert Counter(self._slot_of_user.values()) == +self._users
        assert not self._slot_of_user.keys() & self._waiting.keys()
        assert self._slot_of_user.keys() | self._waiting.keys() <= set(unfinished)
