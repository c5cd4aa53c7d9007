"""Long random runs of the scheduler with drafts, of the host and of the device, right and wrong.

As in `test_scheduler_runs`, the model remembers what each page holds. Here it also corrects the rows that the host has
scheduled as if all drafts under way were right, as the device does.
"""

from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxllm.kv.pages import Int32Array
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.scheduler.plan import FIRST_UNKNOWN, StepPlan
from jaxllm.scheduler.scheduler import Scheduler
from jaxllm.speculation.device_drafts import unknown_drafts
from tests.jaxllm.scheduler.test_scheduler_runs import (
    MOST_AHEAD,
    OWNERS,
    VOCABULARY,
    WRONG,
    Ints,
    PagedModel,
    Run,
    Story,
    next_token,
    options_of,
    params_of,
    tokens_of,
)

MOST_DRAFTS = 6


def forces(request: Request) -> bool:
    """Whether tokens of a request come with others, as with a grammar: only the host knows what follows its drafts."""
    return request.cache_salt is not None


class DraftingModel(PagedModel):
    """A `PagedModel` that checks drafts and makes some: what it accepts it knows before the host."""

    def __init__(self, num_pages: int, block_size: int, rng: np.random.Generator) -> None:
        super().__init__(num_pages, block_size, has_states=False)
        self._rng = rng
        # By slot, of its last step.
        self._accepted: dict[int, int] = {}
        self._guesses: dict[int, list[int]] = {}

    def guess(self, story: Story, place: int, count: int) -> list[int]:
        """So many guesses at what is at a place and after it, most of them right."""
        right = story.tokens[place : place + count].tolist()
        return [token if self._rng.random() < 0.75 else int(self._rng.integers(VOCABULARY)) for token in right]

    def run(
        self, plan: StepPlan, scheduler: Scheduler, stories: dict[str, Story]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32] | None]:
        """See `PagedModel.run`."""
        none = np.zeros(plan.num_rows, np.int32)
        unknown = none if plan.num_unknown is None else plan.num_unknown
        num_drafts = none if plan.num_drafts is None else plan.num_drafts
        ids = none[:0] if plan.draft_ids is None else plan.draft_ids
        drafts = np.split(ids, np.cumsum(num_drafts)[:-1])
        written: list[int] = []
        by_row, forced, after = list[list[int]](), none.copy(), list[tuple[int, list[tuple[Ints, Ints]]]]()
        for row, slot in enumerate(plan.slots.tolist()):
            story, start = stories[plan.requests[row].request_id], int(plan.starts[row])
            if unknown[row]:
                self._places(scheduler, slot, 0, range(start, start + int(plan.num_new_tokens[row])))
                start -= int(unknown[row]) - self._accepted[slot]
            end = start + int(plan.num_new_tokens[row])
            own = [each if each >= 0 else self._guesses[slot][FIRST_UNKNOWN - each] for each in drafts[row].tolist()]
            states = self._states(scheduler, slot, start, end, own, story)
            for table, begin in self._seen(scheduler, start):
                places = self._places(scheduler, slot, table, range(begin, start))
                assert np.array_equal(self.contents[places], story.states[begin:start]), "read from another's page"
                places = self._places(scheduler, slot, table, range(start, end))
                self.contents[places] = states[start:]
                written += places.tolist()
                after.append((slot, [(self._places(scheduler, slot, table, range(begin, end)), states[begin:])]))
            tokens, forced[row] = self._sample(plan, row, end - len(own), own, states, story)
            by_row.append(tokens)
        assert len(set(written)) == len(written), "two rows write to one place"
        for places, wanted in chain.from_iterable(pairs for _, pairs in after):
            assert np.array_equal(self.contents[places], wanted), "wrote into a page that another reads"
        counts = np.array([len(tokens) for tokens in by_row], np.int32)
        if plan.num_drafts is not None:
            plan.num_forced = forced
        several = plan.num_drafts is not None or (counts > 1).any()
        return np.array(list(chain.from_iterable(by_row)), np.int32), counts if several else None

    def _states(self, scheduler: Scheduler, slot: int, start: int, end: int, drafts: list[int], story: Story) -> Ints:
        """What the positions up to `end` hold; the last ones are drafts."""
        first = end - len(drafts)
        known = min(first, int(scheduler.table.num_tokens[slot]))
        assert np.array_equal(scheduler.table.token_ids[slot, :known], story.tokens[:known])
        states = story.states[:end].copy()
        assert len(states) == end
        if known < first:
            assert start == first - 1 == known or scheduler.table.num_pending[slot] > 1, "only the last token"
            assert start == first - 1, "the device knows the last token only"
            if self.last_tokens[slot] != story.tokens[start]:
                states[start:] = WRONG
        for place, token in enumerate(drafts, first):
            if token != story.tokens[place]:
                states[place:] = WRONG
        return states

    def _sample(
        self, plan: StepPlan, row: int, first: int, drafts: list[int], states: Ints, story: Story
    ) -> tuple[list[int], int]:
        """The tokens that the host takes of a row, whose drafts begin at `first`, and how many of them are forced."""
        slot, request = int(plan.slots[row]), plan.requests[row]
        sampled = [WRONG if state == WRONG else next_token(int(state)) for state in states[first - 1 :].tolist()]
        accepted = 0
        while accepted < len(drafts) and drafts[accepted] == sampled[accepted]:
            accepted += 1
        if plan.samples[row]:
            self.last_tokens[slot], self._accepted[slot] = sampled[accepted], accepted
            self._guesses[slot] = self.guess(story, first + accepted + 1, MOST_DRAFTS)
        tail: list[int] = []
        if forces(request):
            accepted = next((place for place in range(accepted) if story.forced[first + place]), accepted)
            tail = story.tail(first + accepted)
        return [*sampled[: accepted + 1], *tail], len(tail)


class Source:
    """Proposes drafts as `Speculation` does: of known text, after a guess, or such as only the device knows."""

    def __init__(self, run: "DraftingRun", *, on_device: bool, rng: np.random.Generator) -> None:
        self._run, self._on_device, self._rng = run, on_device, rng
        self.lookahead = MOST_DRAFTS if on_device else 0
        self.num_unseen = 0

    def can_follow(self, plan: StepPlan) -> bool:
        """See `DraftSource`."""
        assert plan.num_drafts is not None
        drafted = [request for request, count in zip(plan.requests, plan.num_drafts.tolist(), strict=True) if count]
        return self._on_device and not any(map(forces, drafted)) and self._rng.random() < 0.9

    def propose(self, slots: Int32Array, room: Int32Array, num_tokens: int) -> tuple[Int32Array, Int32Array] | None:
        """See `DraftSource`."""
        left, drafts = self._run.options["max_num_batched_tokens"] - num_tokens, list[list[int]]()
        for slot, most in zip(slots.tolist(), room.tolist(), strict=True):
            limit = min(left, most, int(self._rng.integers(MOST_DRAFTS + 1)))
            drafts.append(self._drafts(slot, limit) if limit > 0 else [])
            left -= len(drafts[-1])
        if not any(drafts):
            return None
        return np.array([len(own) for own in drafts], np.int32), np.array(list(chain(*drafts)), np.int32)

    def _drafts(self, slot: int, limit: int) -> list[int]:
        table = self._run.scheduler.table
        request = table.requests[slot]
        assert request is not None
        ahead = int(table.num_computed[slot] - table.num_tokens[slot])
        if ahead and self._on_device and not forces(request) and self._is_in_last(slot):
            self.num_unseen += 1
            return unknown_drafts(np.array([limit], np.int32)).tolist()
        if ahead > 1:
            return []
        place = int(table.num_tokens[slot]) + ahead
        return self._run.drafter.guess(self._run.stories[request.request_id], place, limit)

    def _is_in_last(self, slot: int) -> bool:
        """Whether the step before this one samples for a slot, and makes guesses at what follows."""
        plan = self._run.under_way[-1][0]
        rows = plan.samples & (plan.slots == slot) & (plan.generations == self._run.scheduler.table.generation[slot])
        return bool(rows.any())


class DraftingRun(Run):
    """A `Run` with drafts."""

    def __init__(self, *, on_device: bool, seed: int, **options: Any) -> None:
        super().__init__(**options)
        rng = np.random.default_rng(seed)
        self.model = self.drafter = DraftingModel(options["num_pages"], options["block_size"], rng)
        self.source = Source(self, on_device=on_device, rng=rng)
        self.scheduler.use_drafts(self.source)

    def story_of(self, request: Request) -> Story:
        """With what may be computed before the host learns that the request has ended."""
        beyond = (MOST_AHEAD + 1) * (MOST_DRAFTS + 1) + MOST_DRAFTS
        return Story.of(request, self.options["max_model_len"], beyond=beyond, forces=forces(request))


@settings(max_examples=80, deadline=None)
@given(
    options=options_of(),
    on_device=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
    work=st.lists(
        st.tuples(tokens_of, params_of, st.sampled_from([None, None, None, "a"]), st.integers(0, 2),
                  st.sampled_from(OWNERS), st.integers(0, 3), st.sampled_from([False] * 7 + [True])),
        min_size=1, max_size=10,
    ),
)  # fmt: skip
def test_drafts_change_no_outcome(options: dict[str, Any], on_device: bool, seed: int, work: list[Any]) -> None:
    """Whatever is right, preempted, cut off by the end of a text, aborted or forced in the meantime."""
    options |= {"stages": 1, "snapshots": None, "ahead": min(options["ahead"], MOST_AHEAD)}
    run = DraftingRun(on_device=on_device, seed=seed, **options)
    for prompt, params, salt, priority, owner, steps, aborts in work:
        run.add(prompt, params, priority, salt, owner)
        for step in range(steps):
            if run.live:
                run.step(abort=run.live[0] if aborts and step == 1 else None)
    run.drain()


def test_a_crowd_in_a_tiny_pool_finishes_with_drafts_that_the_host_has_not_seen() -> None:
    rng = np.random.default_rng(5)
    run = DraftingRun(
        num_pages=13, block_size=2, caching=True, ahead=1, max_num_seqs=8, max_num_batched_tokens=24,
        max_model_len=24, policy="fcfs", long_prefill_token_threshold=0, on_device=True, seed=0,
    )  # fmt: skip
    for index in range(40):
        prompt = [1, 2, *rng.integers(0, 3, int(rng.integers(1, 8))).tolist()]
        run.add(prompt, SamplingParams(max_tokens=None, ignore_eos=True), salt="a" if index % 5 == 0 else None)
    run.drain()
    assert run.scheduler.num_preemptions > 5
    assert run.source.num_unseen > 100
