"""Long random runs of the scheduler with a model on the host that remembers what each page holds.

The model's next token depends on the whole sequence, and it reads the sequence from the pages as a device would. An
oracle that knows no pages, steps or batches generates each request alone; all must agree with it. As on a device, a
step runs when it is scheduled, and the host may learn its tokens only after it has scheduled the next ones. After some
tokens the host knows more than the device would sample, and others than it samples: they come with the sampled ones.
"""

from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import accumulate, chain, islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from jaxllm.kv.groups import CacheGroups
from jaxllm.kv.manager import KVManager
from jaxllm.kv.snapshots import SnapshotPool
from jaxllm.requests.owners import NOBODY, Owner
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.scheduler.plan import StepPlan
from jaxllm.scheduler.scheduler import Scheduler
from tests.jaxllm.kv.replica import Replica
from tests.thinned import drawn

Ints = npt.NDArray[np.int64]

EOS = 0
VOCABULARY = 5
MOST_AHEAD = 2


def first_state(request: Request) -> int:
    """Differs by salt, so that a page shared between two salts would show."""
    return 0 if request.cache_salt is None else 1


def next_state(state: int, token: int) -> int:
    """The keys and values of a position stand for this token and all before it."""
    return (state * 1000003 + token + 1) % (2**61 - 1)


def next_token(state: int) -> int:
    return (state >> 7) % VOCABULARY


def num_forced(state: int) -> int:
    """How many tokens are known, without being sampled, after a sampled one."""
    return (state >> 13) % 4 if (state >> 17) % 3 == 0 else 0


def outputs_behind(state: int, *, forces: bool = True) -> Iterator[tuple[int, int]]:
    """The tokens that follow this state, and the number of those that come with each: none unless it `forces` some."""
    while True:
        token = next_token(state)
        state = next_state(state, token)
        forced = num_forced(state) if forces else 0
        yield token, forced
        for _ in range(forced):
            token = (next_token(state) + 1) % VOCABULARY
            state = next_state(state, token)
            yield token, 0


def prompt_state(request: Request) -> int:
    state = first_state(request)
    for token in request.prompt_token_ids.tolist():
        state = next_state(state, token)
    return state


def generate_alone(request: Request, max_model_len: int, *, forces: bool = True) -> tuple[list[int], str, int | None]:
    """Output, finish reason and stop reason by the definition of the parameters."""
    params, following, output = request.params, outputs_behind(prompt_state(request), forces=forces), list[int]()
    while True:
        token, _ = next(following)
        output.append(token)
        if len(output) >= params.min_tokens:
            if token in request.eos_token_ids and not params.ignore_eos:
                return output, "stop", None
            if token in (params.stop_token_ids or []):
                return output, "stop", token
        if len(output) == params.max_tokens or len(request.prompt_token_ids) + len(output) == max_model_len:
            return output, "length", None


@dataclass(frozen=True)
class Story:
    """All there is to know of a request in advance."""

    result: tuple[list[int], str, int | None]
    tokens: Ints  # prompt and output, and what would follow if the host was late to see that it ends, int64 [n]
    states: Ints  # what the pages must hold for them, int64 [n]
    forced: Ints  # how many tokens come with each, int64 [n]

    @classmethod
    def of(cls, request: Request, max_model_len: int, *, beyond: int = MOST_AHEAD, forces: bool = True) -> "Story":
        """With so many tokens `beyond` the end."""
        result = generate_alone(request, max_model_len, forces=forces)
        prompt: list[int] = request.prompt_token_ids.tolist()
        output = list(islice(outputs_behind(prompt_state(request), forces=forces), len(result[0]) + beyond + 1))
        tokens = [*prompt, *(token for token, _ in output)]
        states = list(accumulate(tokens, next_state, initial=first_state(request)))[1:]
        forced = [0] * len(prompt) + [count for _, count in output]
        return cls(result, np.array(tokens), np.array(states), np.array(forced))

    def tail(self, place: int) -> list[int]:
        """The tokens that come with the one at this place."""
        first = place + 1
        tokens: list[int] = self.tokens[first : first + int(self.forced[place])].tolist()
        return tokens


WRONG = -2
"""Stands for keys and values of a token that turns out not to follow; nobody may read them."""


class PagedModel:
    """Page contents as the device holds them: the state after each position, written and read by the plan alone.

    Where the device goes on with a token that it sampled and the host knows better, the state is `WRONG`.
    """

    def __init__(self, num_pages: int, block_size: int, *, has_states: bool) -> None:
        self.block_size = block_size
        # Of recurrent layers: by slot, those of requests and of snapshots. What they hold at first is nobody's.
        self.kept: dict[int, int] | None = {} if has_states else None
        self.last_tokens: dict[int, int] = {}  # by slot
        self.knows_tokens = False  # whether all rows' tokens must be known on the host
        self.contents = np.full(num_pages * block_size, -1, np.int64)

    def run(
        self, plan: StepPlan, scheduler: Scheduler, stories: dict[str, Story]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32] | None]:
        """The tokens of a step, and how many each row has."""
        ends = (plan.starts + plan.num_new_tokens).tolist()
        rows = list(zip(plan.slots.tolist(), plan.starts.tolist(), ends, strict=True))
        of_row = [stories[request.request_id] for request in plan.requests]
        written: list[int] = []
        computed: list[Ints] = []
        self._copy(plan.states_before)
        for (slot, start, end), story in zip(rows, of_row, strict=True):
            known = min(end, int(scheduler.table.num_tokens[slot]))
            assert np.array_equal(scheduler.table.token_ids[slot, :known], story.tokens[:known])
            states = story.states[:end].copy()
            if known < end:
                assert not self.knows_tokens, "runs before its last token is known"
                assert start == end - 1, "the device knows the last token only"
                if self.last_tokens[slot] != story.tokens[start]:
                    states[start] = WRONG
            for table, begin in self._seen(scheduler, start):
                places = self._places(scheduler, slot, table, range(begin, start))
                assert np.array_equal(self.contents[places], states[begin:start]), "read from another's page"
                places = self._places(scheduler, slot, table, range(start, end))
                self.contents[places] = states[start:]
                written += places.tolist()
            computed.append(states)
            self._go_on(slot, start, first_state(plan.requests[len(computed) - 1]), states)
        self._copy(plan.states_behind)
        assert len(set(written)) == len(written), "two rows write to one place"
        for (slot, start, end), states in zip(rows, computed, strict=True):
            for table, begin in self._seen(scheduler, start):
                places = self._places(scheduler, slot, table, range(begin, end))
                assert np.array_equal(self.contents[places], states[begin:]), "wrote into a page that another reads"
        sampled = [WRONG if states[-1] == WRONG else next_token(int(states[-1])) for states in computed]
        self.last_tokens.update(
            (slot, token) for (slot, *_), token, counts in zip(rows, sampled, plan.samples, strict=True) if counts
        )
        by_row = [[token, *story.tail(end)] for token, story, (*_, end) in zip(sampled, of_row, rows, strict=True)]
        counts = np.array([len(tokens) for tokens in by_row], np.int32)
        return np.array(list(chain.from_iterable(by_row)), np.int32), counts if (counts > 1).any() else None

    def _copy(self, copies: list[tuple[int, int]]) -> None:
        """Copy states from slots to slots."""
        assert self.kept is not None or not copies
        for source, target in copies:
            assert self.kept is not None
            self.kept[target] = self.kept[source]

    def _go_on(self, slot: int, start: int, first: int, states: Ints) -> None:
        """Compute the positions of a row from `start` on; a state cannot be looked up, only gone on from."""
        if self.kept is None:
            return
        before = self.kept.get(slot) if start else first
        assert before == (states[start - 1] if start else first), "went on from another's state"
        self.kept[slot] = int(states[-1])

    def _seen(self, scheduler: Scheduler, start: int) -> list[tuple[int, int]]:
        """The page tables, each with the first position that a token at `start` sees."""
        windows = scheduler.table.groups.windows
        return [(table, max(start - window + 1, 0) if window else 0) for table, window in enumerate(windows)]

    def _places(self, scheduler: Scheduler, slot: int, table: int, which: range) -> Ints:
        positions = np.array(which, np.int64)
        pages = scheduler.table.tables(slot)[table, positions // self.block_size]
        assert pages.all(), "the null page belongs to nobody"
        return pages * self.block_size + positions % self.block_size


class Run:
    """A scheduler, its model, and the rules that every single step must keep.

    `ahead` steps are scheduled before the host learns the tokens of the first.
    """

    def __init__(
        self,
        *,
        num_pages: int,
        block_size: int,
        caching: bool,
        ahead: int,
        windows: tuple[int, ...] = (0,),
        margin: int = 0,
        snapshots: int | None = None,
        retention_interval: int | None = 0,
        **options: Any,
    ) -> None:
        """`snapshots` are slots for states of recurrent layers; None: there are no such layers."""
        has_states = snapshots is not None
        groups = CacheGroups(windows, block_size, options["max_num_batched_tokens"], has_states, margin)
        pool = None if snapshots is None else SnapshotPool(options["max_num_seqs"], snapshots)
        self.pages = KVManager(
            num_pages,
            block_size,
            enable_prefix_caching=caching,
            groups=groups,
            snapshots=pool,
            retention_interval=retention_interval,
        )
        self.replica = Replica(self.pages)
        self.scheduler = Scheduler(pages=self.pages, **options)
        self.model = PagedModel(num_pages, block_size, has_states=has_states)
        self.model.knows_tokens = options.get("stages", 1) > 1
        self.options = options
        self.ahead = ahead
        self.under_way: deque[tuple[StepPlan, npt.NDArray[np.int32], npt.NDArray[np.int32] | None]] = deque()
        self.requests: dict[str, Request] = {}
        self.stories: dict[str, Story] = {}
        self.live: list[str] = []
        self.held: dict[str, set[str]] = {}

    @property
    def has_loads(self) -> bool:
        """Whether pages are held by others than requests."""
        return False

    @property
    def ready(self) -> list[str]:
        """Unfinished requests that may run."""
        return [name for name in self.live if not self.held.get(name)]

    def add(
        self,
        prompt: list[int],
        params: SamplingParams,
        priority: int = 0,
        salt: str | None = None,
        owner: Owner = NOBODY,
        hold_reasons: Collection[str] = (),
    ) -> None:
        name = str(len(self.requests))
        request = Request(
            request_id=name,
            prompt_token_ids=np.array(prompt, np.int32),
            params=params,
            priority=priority,
            cache_salt=salt,
            eos_token_ids=(EOS,),
            owner=owner,
        )
        self.requests[name] = request
        self.stories[name] = self.story_of(request)
        self.live.append(name)
        self.held[name] = set(hold_reasons)
        self.scheduler.add(request, hold_reasons)

    def story_of(self, request: Request) -> Story:
        return Story.of(request, self.options["max_model_len"])

    def hold(self, name: str, reason: str) -> None:
        self.held[name].add(reason)
        self.scheduler.hold(self.requests[name], reason)

    def release(self, name: str, reason: str) -> None:
        """Also of a request that has ended, and for a reason that it does not have."""
        self.held[name].discard(reason)
        self.scheduler.release(self.requests[name], reason)
        self.scheduler.check_integrity()

    def key(self, request: Request) -> tuple[int, int]:
        return (request.priority if self.options["policy"] == "priority" else 0, request.arrival)

    def step(self, abort: str | None = None) -> None:
        """Take the tokens of one step; `abort` ends that request between `schedule` and `update`."""
        while len(self.under_way) <= self.ahead and self._start():
            pass
        if abort is not None:
            self.finish(abort)
        if not self.under_way:
            assert not self.ready or self.has_loads
            return
        scheduler = self.scheduler
        for request in scheduler.update(*self.under_way.popleft()):
            self.live.remove(request.request_id)
            result = (request.output_token_ids, request.finish_reason, request.stop_reason)
            assert result == self.stories[request.request_id].result
        scheduler.check_integrity()
        self.replica.check()

    def _start(self) -> bool:
        """Schedule a step and run it."""
        table = self.scheduler.table
        running = sorted((each for each in table.requests if each is not None), key=self.key)
        total = {each: int(table.num_tokens[each.slot] + table.num_pending[each.slot]) for each in running}
        behind = {each: total[each] - int(table.num_computed[each.slot]) for each in running if self._goes_on(each)}
        waiting = sorted((self.requests[name] for name in self.ready if self.requests[name].slot < 0), key=self.key)
        contended = len({self.requests[name].owner.name for name in self.live}) > 1
        plan = self.scheduler.schedule()
        waiting = [request for request in waiting if not self.held[request.request_id]]  # It may have held some.
        self.scheduler.check_integrity()
        self.replica.check()
        if plan is None:
            assert self.under_way or not self.ready or self.has_loads
            return False
        assert not any(self.held[request.request_id] for request in plan.requests), "a held request runs"
        self._check_plan(plan, running, total, behind)
        if contended:
            self._check_turns(plan, running, waiting)
        else:
            # Who leaves: the last in order. Who comes: the first in order, and nobody while others leave.
            assert plan.preempted == running[::-1][: len(plan.preempted)]
            assert plan.admitted == waiting[: len(plan.admitted)]
            assert not (plan.preempted and plan.admitted)
        self.under_way.append((plan, *self.model.run(plan, self.scheduler, self.stories)))
        return True

    def _goes_on(self, request: Request) -> bool:
        """Whether a running request has not sampled the last token that its length allows."""
        table, slot, num_prompt = self.scheduler.table, request.slot, len(request.prompt_token_ids)
        total = int(table.num_tokens[slot] + table.num_pending[slot])
        limit, most = self.options["max_model_len"], request.params.max_tokens
        return total < (limit if most is None else min(limit, num_prompt + most))

    def _check_plan(
        self,
        plan: StepPlan,
        running: list[Request],
        total: dict[Request, int],
        behind: dict[Request, int],
    ) -> None:
        counts = plan.num_new_tokens.tolist()
        owners = self.scheduler.table.requests
        assert plan.requests == [owners[slot] for slot in plan.slots.tolist()]
        assert len(set(plan.requests)) == plan.num_rows <= self.options["max_num_seqs"]
        assert min(counts) > 0
        assert sum(counts) == plan.num_tokens <= self.options["max_num_batched_tokens"]
        threshold = self.options["long_prefill_token_threshold"]
        own = plan.num_new_tokens if plan.num_drafts is None else plan.num_new_tokens - plan.num_drafts
        assert not threshold or int(own.max()) <= threshold
        ends = (plan.starts + own).tolist()
        # Those that made way have lost what was under way, and may be back in the same step.
        known = {each: total[each] for each in running if each not in plan.preempted}
        reached = [end == known.get(each, each.num_tokens) for end, each in zip(ends, plan.requests, strict=True)]
        assert plan.samples.tolist() == reached
        last_only = [count == 1 and reaches for count, reaches in zip(counts, reached, strict=True)]
        assert last_only == [row < plan.num_decodes for row in range(plan.num_rows)], "decodes first"
        # Who runs: all decodes, and the first in order always.
        stayed = [request for request in running if request not in plan.preempted]
        stages = self.options.get("stages", 1)
        if stages > 1:
            # With stages those whose tokens are known, and no more of them than other steps get.
            assert plan.num_decodes <= -(-len(running) // stages) + len(plan.admitted)
            return
        assert {request for request in stayed if behind.get(request) == 1} <= set(plan.requests)
        assert ([request for request in stayed if request in behind] + plan.admitted)[0] in plan.requests

    def _check_turns(self, plan: StepPlan, running: list[Request], waiting: list[Request]) -> None:
        """Several owners: the first that runs never leaves, and those of each owner come in order."""
        assert not running or running[0] not in plan.preempted
        assert len(set(plan.preempted)) == len(plan.preempted)
        for owner in {request.owner.name for request in plan.admitted}:
            line = sorted([each for each in (*waiting, *plan.preempted) if each.owner.name == owner], key=self.key)
            came = [each for each in plan.admitted if each.owner.name == owner]
            assert came == line[: len(came)]

    def finish(self, name: str) -> None:
        request = self.scheduler.finish(name, "abort")
        assert request is self.requests[name]
        self.live.remove(name)
        known = len(request.output_token_ids)
        assert request.output_token_ids == self.stories[name].result[0][:known]

    def drain(self) -> None:
        """Every accepted request finishes: in each step the first in order gains at least one token."""
        for name, reasons in self.held.items():
            for reason in tuple(reasons):
                self.release(name, reason)
        # With several owners a request that was the first may have to begin again after older ones that came later.
        again = len(self.live) if len({each.owner for each in self.requests.values()}) > 1 else 1
        for _ in range((self.ahead + 1) * (again * len(self.live) * self.options["max_model_len"] + 1)):
            if not self.live:
                break
            self.step()
        assert not self.live, "starved"
        assert not self.scheduler.has_unfinished
        assert self.pages.num_free_pages == self.pages.num_pages - 1, "leaked"


REASONS = ("grammar", "transfer")
OWNERS = [Owner("a"), Owner("b"), Owner("c", 3.0)]

tokens_of = st.lists(st.integers(0, 2), min_size=1, max_size=23)
params_of = st.builds(
    lambda max_tokens, min_tokens, **rest: SamplingParams(
        max_tokens=max_tokens, min_tokens=min_tokens if max_tokens is None else min(min_tokens, max_tokens), **rest
    ),
    max_tokens=st.none() | st.integers(1, 20),
    min_tokens=st.sampled_from([0, 0, 3, 30]),
    ignore_eos=st.booleans(),
    stop_token_ids=st.sampled_from([None, [3], [0, 4], list(range(3, 20))]),
    prompt_logprobs=st.sampled_from([None, None, 0]),
)


# Not a window of 1 alone: such a request holds nothing between its steps, which looks idle.
windows_of = st.just((0,)) | st.sampled_from([(3,), (2,), (0, 4), (0, 0, 7), (0, 1, 1, 6), (2, 9)])
"""Of each page table."""


@st.composite
def options_of(draw: st.DrawFn) -> dict[str, Any]:
    block_size = draw(st.integers(1, 5))
    max_model_len = 24
    windows = draw(windows_of)
    snapshots = draw(st.sampled_from([None, None, 0, 1, 3, 20]))
    stages = draw(st.sampled_from([1, 1, 2, 3])) if snapshots is None else 1
    max_num_batched_tokens = draw(st.integers(1, 30))
    margin = draw(st.integers(0, 1))
    groups = CacheGroups(windows, block_size, max_num_batched_tokens, margin=margin)
    at_least = 1 + groups.most_pages(max_model_len)
    return {
        "block_size": block_size,
        "margin": margin,
        "retention_interval": draw(st.sampled_from([0, 0, 1, 5, 9, None])),
        # Engines schedule one step ahead; with more, a state would go on with a token that is not the one.
        "ahead": draw(st.sampled_from([0, 1, 1, MOST_AHEAD] if snapshots is None else [0, 1]))
        if stages == 1
        else stages - 1,
        "stages": stages,
        "snapshots": snapshots,
        "mamba_block_size": draw(st.integers(1, 12)),
        "num_pages": draw(st.integers(at_least, 3 * at_least)),
        "caching": draw(st.booleans()),
        "max_num_seqs": draw(st.integers(1, 6)),
        "max_num_batched_tokens": max_num_batched_tokens,
        "windows": windows,
        "max_model_len": max_model_len,
        "policy": draw(st.sampled_from(["fcfs", "priority"])),
        "long_prefill_token_threshold": draw(st.sampled_from([0, 0, 1, 4])),
    }


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(options=options_of(), several=st.booleans())
    def start(self, options: dict[str, Any], several: bool) -> None:
        self.run = Run(**options)
        self.several = several

    @rule(
        prompt=tokens_of,
        params=params_of,
        priority=st.integers(-1, 1),
        salt=st.sampled_from([None, None, "a"]),
        count=st.integers(1, 3),
        owner=st.sampled_from(OWNERS),
        hold_reasons=st.sampled_from([(), (), (), REASONS[:1], REASONS]),
    )
    def add(
        self,
        prompt: list[int],
        params: SamplingParams,
        priority: int,
        salt: str | None,
        count: int,
        owner: Owner,
        hold_reasons: tuple[str, ...],
    ) -> None:
        for _ in range(count):
            self.run.add(prompt, params, priority, salt, owner if self.several else NOBODY, hold_reasons)

    @precondition(lambda self: self.run.requests)
    @rule(data=st.data(), reason=st.sampled_from(REASONS))
    def release(self, data: st.DataObject, reason: str) -> None:
        self.run.release(data.draw(st.sampled_from(list(self.run.requests))), reason)

    @rule(data=st.data(), reason=st.sampled_from(REASONS))
    def hold(self, data: st.DataObject, reason: str) -> None:
        waiting = [name for name in self.run.live if self.run.requests[name].slot < 0]
        if waiting:
            self.run.hold(data.draw(st.sampled_from(waiting)), reason)

    @precondition(lambda self: self.run.live)
    @rule(count=st.integers(1, 8))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.run.step()

    @precondition(lambda self: self.run.live)
    @rule(data=st.data(), during=st.booleans())
    def abort(self, data: st.DataObject, during: bool) -> None:
        name = data.draw(st.sampled_from(self.run.live))
        if during:
            self.run.step(abort=name)
        else:
            self.run.finish(name)

    @rule()
    def reset(self) -> None:
        idle = self.run.scheduler.num_running == 0
        assert self.run.scheduler.reset_prefix_cache() == idle
        if idle:
            assert self.run.pages.num_cached_pages == 0
            assert not self.run.pages.snapshots

    def teardown(self) -> None:
        if hasattr(self, "run"):
            self.run.drain()


SchedulerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestSchedulerMachine = SchedulerMachine.TestCase


@settings(max_examples=25, deadline=None)
@given(data=st.data(), variants=st.lists(options_of(), min_size=2, max_size=3))
def test_outcomes_do_not_depend_on_how_they_were_scheduled(data: st.DataObject, variants: list[dict[str, Any]]) -> None:
    work = data.draw(
        st.lists(st.tuples(tokens_of, params_of, st.integers(0, 2), st.sampled_from(OWNERS)), min_size=1, max_size=8)
    )
    outcomes = []
    for options in variants:
        run = Run(**options)
        for prompt, params, priority, owner in work:
            run.add(prompt, params, priority, owner=owner)
        run.drain()
        outcomes.append(
            [(each.output_token_ids, each.finish_reason, each.stop_reason) for each in run.requests.values()]
        )
    assert all(outcome == outcomes[0] for outcome in outcomes)


ONE_TABLE, THREE_TABLES, STATES = ((0,), 13, 16, None), ((0, 3, 3), 23, 6, None), ((0,), 13, 16, 5)
CROWDS = drawn(["fcfs", "priority"], [False, True], [0, 1], [1, 3], [ONE_TABLE, THREE_TABLES, STATES], share=3)


@pytest.mark.parametrize(
    ("policy", "caching", "ahead", "num_owners", "windows", "num_pages", "budget", "snapshots"),
    [(*others, *caches) for *others, caches in CROWDS],
)
def test_a_crowd_in_a_tiny_pool_finishes(
    policy: str,
    caching: bool,
    ahead: int,
    num_owners: int,
    windows: tuple[int, ...],
    num_pages: int,
    budget: int,
    snapshots: int | None,
) -> None:
    """Preemption all the time, many times per request, and every output is still right."""
    rng = np.random.default_rng(3)
    run = Run(
        num_pages=num_pages,
        windows=windows,
        snapshots=snapshots,
        mamba_block_size=4,
        block_size=2,
        caching=caching,
        ahead=ahead,
        max_num_seqs=8,
        max_num_batched_tokens=budget,
        max_model_len=24,
        policy=policy,
        long_prefill_token_threshold=0,
    )
    for index in range(40):
        prompt = [1, 2, *rng.integers(0, 3, int(rng.integers(1, 8))).tolist()]
        params = SamplingParams(max_tokens=None, ignore_eos=True)
        run.add(prompt, params, priority=index % 3, owner=OWNERS[index % num_owners])
    run.drain()
    assert run.scheduler.num_preemptions > (20 if windows == (0,) else 5)
    assert max(each.num_preemptions for each in run.requests.values()) > 1 or windows != (0,)
    assert (run.pages.prefix_hits > 0) == caching


def test_later_arrivals_do_not_starve_a_long_prompt() -> None:
    """A prompt of many chunks makes progress in every step although new short requests never stop coming."""
    run = Run(
        num_pages=60,
        block_size=2,
        caching=False,
        ahead=0,
        max_num_seqs=4,
        max_num_batched_tokens=4,
        max_model_len=24,
        policy="fcfs",
        long_prefill_token_threshold=0,
    )
    for _ in range(3):
        run.add([1], SamplingParams(max_tokens=20, ignore_eos=True))
    run.step()
    run.add([1] * 20, SamplingParams(max_tokens=1))
    for _ in range(25):
        run.add([1], SamplingParams(max_tokens=20, ignore_eos=True))
        run.step()
    assert "3" not in run.live
    run.drain()


def test_a_threshold_above_the_budget_finishes_with_windows() -> None:
    """Known tokens of a contended request ask for no more pages than a step can fill."""
    run = Run(
        num_pages=5,
        windows=(3,),
        block_size=1,
        caching=False,
        ahead=0,
        max_num_seqs=1,
        max_num_batched_tokens=1,
        max_model_len=24,
        policy="fcfs",
        long_prefill_token_threshold=4,
    )
    for owner in OWNERS[:2]:
        run.add([0], SamplingParams(max_tokens=None, ignore_eos=True), owner=owner)
    run.drain()
