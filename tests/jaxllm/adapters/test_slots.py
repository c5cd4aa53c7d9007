"""Slots of adapters: nobody runs with another's adapter, nobody waits for ever, none is replaced while it is used."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from jaxllm.adapters.slots import AdapterSlots, WriteError

SLOTS, KEYS = 3, 6


class Slots(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.content: dict[int, str] = {}
        self.running: dict[int, tuple[str, int]] = {}
        self.waiting: dict[int, str] = {}
        self.slots: AdapterSlots[str, int] = AdapterSlots(SLOTS, self.write)
        self.count = 0
        self.pinned: str | None = None
        self.broken: str | None = None

    def write(self, slot: int, key: str) -> None:
        assert all(used != slot for _, used in self.running.values()), "replaced while in use"
        self.content[slot] = "nothing"
        if key == self.broken:
            raise WriteError
        self.content[slot] = key

    @rule(key=st.integers(0, KEYS - 1))
    def fail(self, key: int) -> None:
        self.broken = f"adapter {key}"

    @rule()
    def recover(self) -> None:
        self.broken = None

    @rule(key=st.integers(0, KEYS - 1))
    def want(self, key: int) -> None:
        self.count += 1
        self.waiting[self.count] = f"adapter {key}"
        self.slots.want(self.count, f"adapter {key}")

    @rule()
    def assign(self) -> None:
        for user, slot in self.slots.assign():
            key = self.waiting.pop(user)
            if isinstance(slot, WriteError):
                assert key == self.broken
                continue
            assert self.content[slot] == key
            self.running[user] = key, slot

    @rule(data=st.data())
    def end(self, data: Any) -> None:
        users = sorted(self.running) + sorted(self.waiting)
        if users:
            user = data.draw(st.sampled_from(users))
            self.running.pop(user, None)
            self.waiting.pop(user, None)
            self.slots.forget(user)

    @rule(key=st.integers(0, KEYS - 1))
    def drop(self, key: int) -> None:
        self.slots.drop(f"adapter {key}")

    @rule(key=st.integers(0, KEYS - 1))
    def pin(self, key: int) -> None:
        # One at most: with all slots pinned, others do wait for ever.
        if self.pinned is not None:
            self.slots.unpin(self.pinned)
        self.pinned = f"adapter {key}"
        self.slots.pin(self.pinned)

    @invariant()
    def holds_together(self) -> None:
        self.slots.check_integrity(self.running.keys() | self.waiting.keys())
        for key, slot in self.running.values():
            assert self.content[slot] == key

    def teardown(self) -> None:
        # Whoever waits gets a slot as others end.
        for _ in range(self.count + 1):
            self.assign()
            for user in list(self.running):
                self.running.pop(user)
                self.slots.forget(user)
        assert not self.waiting


TestSlots = Slots.TestCase
TestSlots.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_adapters_in_slots_do_not_keep_others_out() -> None:
    slots: AdapterSlots[str, int] = AdapterSlots(2, lambda slot, key: None)
    for user, key in enumerate(["a", "b"]):
        slots.want(user, key)
    assert [user for user, _ in slots.assign()] == [0, 1]
    slots.want(2, "c")
    assert slots.assign() == []
    # Requests for one of the two come without end: one of the slots is drained all the same.
    for user in range(3, 20):
        slots.want(user, "ab"[user % 2])
    started = [user for user, _ in slots.assign()]
    assert started == list(range(4, 20, 2)) or started == list(range(3, 20, 2))
    slots.forget(0)
    slots.forget(1)
    assert 2 in [user for user, _ in slots.assign()]


def test_an_unused_slot_goes_to_the_next_and_the_longest_unused_goes_first() -> None:
    written: list[tuple[int, str]] = []
    slots: AdapterSlots[str, int] = AdapterSlots(2, lambda slot, key: written.append((slot, key)))
    for user, key in enumerate(["a", "b", "a", "c"]):
        slots.want(user, key)
        slots.assign()
        slots.forget(user)
    assert written == [(0, "a"), (1, "b"), (1, "c")]


def test_a_pinned_adapter_keeps_its_slot() -> None:
    slots: AdapterSlots[str, int] = AdapterSlots(1, lambda slot, key: None)
    slots.want(0, "a")
    slots.assign()
    slots.forget(0)
    slots.pin("a")
    slots.want(1, "b")
    assert slots.assign() == []
    slots.unpin("a")
    assert slots.assign() == [(1, 0)]


def test_an_adapter_that_cannot_be_written_fails_its_own_requests() -> None:
    def write(slot: int, key: str) -> None:
        if key == "broken":
            raise WriteError

    slots: AdapterSlots[str, int] = AdapterSlots(2, write)
    for user, key in enumerate(["a", "broken", "b", "broken", "a"]):
        slots.want(user, key)
    found = slots.assign()
    assert [user for user, slot in found if isinstance(slot, WriteError)] == [1, 3]
    assert [user for user, slot in found if not isinstance(slot, WriteError)] == [0, 2, 4]
    slots.check_integrity([0, 2, 4])
