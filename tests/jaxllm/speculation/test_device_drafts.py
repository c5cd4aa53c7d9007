"""Drafts of the device: which are kept, and how often they are made."""

import numpy as np

from jaxllm.scheduler.table import RequestTable
from jaxllm.speculation.device_drafts import (
    COMPARISON,
    FEW_TOKENS,
    FIRST_COMPARISON,
    FIRST_REST,
    LAST_COMPARISON,
    LONGEST_PAUSE,
    DeviceDrafts,
    DraftPace,
)


def steps_until_rest(pace: DraftPace, *, used: bool = False) -> tuple[int, int]:
    """How many steps make drafts until the device rests, and in how many it reads the text; at most 1,000."""
    tries = 0
    for step in range(1000):
        if pace.rests(begins=not step):
            return tries, step
        if pace.wants_drafts():
            tries += 1
            pace.note(used=used)
    return tries, 1000


def test_drafts_in_vain_are_made_ever_less_and_then_the_device_rests() -> None:
    pace = DraftPace()
    assert steps_until_rest(pace) == (4, 4 + 1 + 3 + LONGEST_PAUSE)
    rest = 0
    while pace.rests(begins=True):
        rest += 1
    assert FIRST_REST - 2 <= rest <= FIRST_REST
    steps_until_rest(pace)
    rest = 0
    while pace.rests(begins=True):
        rest += 1
    assert rest >= 2 * FIRST_REST - 2, "each rest is longer"


def test_a_rest_ends_with_a_request_that_begins() -> None:
    pace = DraftPace()
    steps_until_rest(pace)
    assert all(pace.rests(begins=False) for _ in range(10 * FIRST_REST))
    assert not pace.rests(begins=True)
    assert pace.wants_drafts()


def test_drafts_that_are_used_are_made_in_every_step_but_for_comparisons() -> None:
    pace, rests = DraftPace(), []
    for step in range(12000):
        if pace.rests(begins=False):
            rests.append(step)
            continue
        assert pace.wants_drafts()
        pace.note(used=True)
    begun = [step for step in rests if step - 1 not in rests]
    uses = np.diff([0, *begun]) - np.array([0] + [COMPARISON] * (len(begun) - 1))
    assert uses[:4].tolist() == [FIRST_COMPARISON * 4**place for place in range(4)], "the first ones come soon"
    assert uses.max() == LAST_COMPARISON
    assert len(rests) == COMPARISON * len(begun), "each is short, and ends without a request that begins"


def test_an_unknown_size_is_compared_soon() -> None:
    pace = DraftPace()
    begun = []
    for step in range(40 * (FIRST_COMPARISON + COMPARISON)):
        if pace.rests(begins=False):
            begun.append(step)
        else:
            pace.note(used=True, knows_plain=False)
    assert len(begun) == 40 * COMPARISON


def test_no_part_of_a_prompt_is_missed_for_a_comparison() -> None:
    pace = DraftPace()
    for _ in range(FIRST_COMPARISON):
        pace.note(used=True)
    assert pace.rests(begins=False)
    assert not pace.rests(begins=False, reads_prompt=True)
    assert not pace.rests(begins=False)
    table, drafts, slots = RequestTable(2, 16, 4), DeviceDrafts(2, 3), np.arange(2, dtype=np.int32)
    drafts.miss(table, slots, np.array([1, 2], np.int32))
    assert drafts.has_read(table, slots).tolist() == [True, False]


def test_rests_are_short_again_after_drafts_that_were_used() -> None:
    pace = DraftPace()
    steps_until_rest(pace)
    while pace.rests(begins=True):
        pass
    pace.note(used=True)
    steps_until_rest(pace)
    rest = 0
    while pace.rests(begins=True):
        rest += 1
    assert rest <= FIRST_REST, "after drafts that were used, rests are short again"


def test_no_drafts_for_a_text_that_was_not_read() -> None:
    table, drafts = RequestTable(2, 16, 4), DeviceDrafts(2, 3)
    slots = np.arange(2, dtype=np.int32)
    table.num_tokens[:] = 5
    for _ in range(FEW_TOKENS):
        drafts.miss(table, slots, np.ones(2, np.int32))
    assert drafts.has_read(table, slots).all(), "a few tokens"
    drafts.miss(table, slots[:1], np.ones(1, np.int32))
    drafts.take(table, slots, np.full(2, 5, np.int32), np.arange(6, dtype=np.int32).reshape(2, 3))
    counts, ids = drafts.propose(table, slots, np.full(2, 3, np.int32))
    assert counts.tolist() == [0, 3]
    assert ids.tolist() == [3, 4, 5]
    table.generation[0] += 1
    assert drafts.has_read(table, slots).all(), "another request has the slot"
