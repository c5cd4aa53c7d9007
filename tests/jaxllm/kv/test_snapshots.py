"""Snapshots are found by digest, and the one that was used longest ago makes way."""

from hypothesis import given, settings
from hypothesis import strategies as st

from jaxllm.kv.snapshots import SnapshotPool

A, B, C, D = (letter * 32 for letter in (b"a", b"b", b"c", b"d"))


def published(pool: SnapshotPool, digest: bytes) -> int:
    slot = pool.take()
    assert slot is not None
    pool.publish(digest, slot)
    return slot


def test_the_longest_unused_makes_way() -> None:
    pool = SnapshotPool(4, 2)
    first, second = published(pool, A), published(pool, B)
    assert {first, second} == {4, 5}
    assert pool.find(A) == first
    assert published(pool, C) == second
    assert (pool.find(A), pool.find(B), pool.find(C)) == (first, None, second)
    assert (pool.longest([A, B, C, D]), pool.longest([A, B]), pool.longest([D, B]), pool.longest([])) == (3, 1, 0, 0)


def test_slots_that_a_step_writes_are_left_alone() -> None:
    pool = SnapshotPool(0, 2)
    kept, other = pool.take(), pool.take()
    assert kept is not None
    assert other is not None
    assert pool.take() is None
    pool.clear()
    pool.check_integrity([kept, other])
    pool.give_back(other)
    pool.publish(A, kept)
    assert published(pool, A) == other, "it is blank again: there is one of these already"
    pool.check_integrity([])
    assert (len(pool), pool.find(A)) == (1, kept)


def test_spare_ones_make_way_first_unless_they_were_found() -> None:
    pool = SnapshotPool(0, 3)
    first = published(pool, A)
    for digest in (B, C):
        slot = pool.take()
        assert slot is not None
        pool.publish(digest, slot, spare=True)
    assert pool.longest([A, B, C, D]) == 3
    assert pool.find(B) is not None
    for digest in (D, bytes(32)):
        published(pool, digest)
        assert (pool.find(C), pool.find(B) is None) == (None, False)
    assert pool.find(A) != first, "then the one that was used longest ago"
    pool.check_integrity([])


@settings(max_examples=50, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["take", "publish", "spare", "drop", "find", "clear"]), st.integers(0, 4))
    ),
    count=st.integers(0, 3),
)
def test_every_slot_has_one_use(steps: list[tuple[str, int]], count: int) -> None:
    pool, taken, held = SnapshotPool(7, count), list[int](), dict[int, int]()
    for what, number in steps:
        digest = bytes([number])
        if what == "take":
            slot = pool.take()
            if slot is not None:
                taken.append(slot)
                held = {key: value for key, value in held.items() if value != slot}
        elif what == "find":
            found = pool.find(digest)
            assert found is None or held[number] == found
        elif what == "clear":
            pool.clear()
            held.clear()
        elif taken:
            slot = taken.pop()
            if what == "drop":
                pool.give_back(slot)
            else:
                pool.publish(digest, slot, spare=what == "spare")
                held.setdefault(number, slot)
        pool.check_integrity(taken)
        assert len(pool) == len(held)
