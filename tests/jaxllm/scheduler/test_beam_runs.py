"""Long random runs of beam searches alongside other requests, with a model on the host that remembers what pages hold.

As in `test_scheduler_runs`, the model reads each sequence from the pages as a device would, and knows the tokens that
came before from their contents alone. What must come out is found by the same policy without pages, steps or batches.
"""

from collections import deque
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from jaxllm.beam.group import BeamGroup
from jaxllm.beam.policy import BeamSearch, Candidates
from jaxllm.kv.groups import CacheGroups
from jaxllm.kv.manager import KVManager
from jaxllm.kv.prefix import extend_digests, root_digest
from jaxllm.requests.beam_options import BeamOptions
from jaxllm.requests.owners import Owner
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.scheduler.plan import StepPlan
from jaxllm.scheduler.scheduler import Scheduler

EOS = 0
VOCABULARY = 8
MAX_MODEL_LEN = 24

Ints = npt.NDArray[np.int64]


def states_of(tokens: list[int], salt: str | None) -> list[int]:
    """The keys and values of each position stand for its token and all before it."""
    return _states_of(tuple(tokens), salt)


@lru_cache(maxsize=100_000)
def _states_of(tokens: tuple[int, ...], salt: str | None) -> list[int]:
    state, states = 0 if salt is None else 1, []
    for token in tokens:
        state = (state * 1000003 + token + 1) % (2**61 - 1)
        states.append(state)
    return states


@lru_cache(maxsize=100_000)
def ranked(state: int) -> Candidates:
    """The model: tokens after a state, most likely first, with log-probabilities."""
    logits = np.random.default_rng(state).normal(0, 1.5, VOCABULARY)
    logprobs = logits - np.log(np.exp(logits).sum())
    order = np.argsort(-logprobs)
    return Candidates(order.astype(np.int32), logprobs[order].astype(np.float32))


def alone(request: Request) -> list[tuple[list[int], float]]:
    """The hypotheses of a request by the policy alone."""
    options, params, prompt = request.params.beam_search, request.params, request.prompt_token_ids.tolist()
    assert options is not None
    ends = frozenset() if params.ignore_eos else frozenset({EOS})
    room = MAX_MODEL_LEN - len(prompt)
    search = BeamSearch(options, ends, room if params.max_tokens is None else min(room, params.max_tokens))
    while not search.done:
        texts = [[*prompt, *(link.token_id for link in beam.last.chain())] for beam in search.beams] or [prompt]
        search.advance([first(ranked(states_of(text, request.cache_salt)[-1]), search) for text in texts])
    return [([link.token_id for link in each.last.chain()], each.score) for each in search.best]


def first(candidates: Candidates, search: BeamSearch) -> Candidates:
    count = search.num_candidates
    return Candidates(candidates.token_ids[:count], candidates.logprobs[:count])


def greedy(request: Request) -> list[int]:
    """The output of a request without beams, which goes on to its length."""
    tokens = request.prompt_token_ids.tolist()
    assert request.params.max_tokens is not None
    for _ in range(request.params.max_tokens):
        tokens.append(int(ranked(states_of(tokens, request.cache_salt)[-1]).token_ids[0]))
    return tokens[len(request.prompt_token_ids) :]


class Device:
    """Pages and the page table as a device has them, changed by plans alone."""

    def __init__(self, scheduler: Scheduler, num_pages: int, block_size: int) -> None:
        self.scheduler, self.size = scheduler, block_size
        self.contents = np.full((num_pages, block_size), -1, np.int64)
        self.table = np.zeros_like(scheduler.table.block_table)
        self.last_tokens: dict[int, int] = {}
        self.num_copies = 0

    def run(self, plan: StepPlan) -> list[int]:
        """Run a step; the state after each row's last token."""
        table = self.scheduler.table
        if plan.copies is not None:
            froms, tos = plan.copies.T
            assert not set(froms.tolist()) & set(tos.tolist())
            assert len(set(tos.tolist())) == len(tos), "two copies to one page"
            self.contents[tos] = self.contents[froms]
            self.num_copies += len(tos)
        changed = [*(each.slot for each in plan.admitted), *plan.moved]
        self.table[changed] = table.block_table[changed]
        rows = list(zip(plan.slots.tolist(), plan.starts.tolist(), plan.num_new_tokens.tolist(), strict=True))
        texts = [self._tokens(slot, start + count) for slot, start, count in rows]
        states = [states_of(text, request.cache_salt) for text, request in zip(texts, plan.requests, strict=True)]
        written: set[tuple[int, int]] = set()
        for (slot, start, count), expected in zip(rows, states, strict=True):
            end = start + count
            last = (end - 1) // self.size
            if start // self.size < last and table.groups.gives_back:
                self.table[slot] = table.block_table[slot]
            self._tables(self.table[slot])[:, last] = table.tables(slot)[:, last]
            for own, begin in zip(self._tables(self.table[slot]), self._seen(start), strict=True):
                places = self._places(own, range(begin, start))
                assert self._read(places) == expected[begin:start], "read from another's page"
                for place, state in zip(self._places(own, range(start, end)), expected[start:], strict=True):
                    assert place not in written, "two rows write to one place"
                    written.add(place)
                    self.contents[place] = state
        self.last_tokens.update(
            (slot, int(ranked(state[-1]).token_ids[0])) for (slot, *_), state in zip(rows, states, strict=True)
        )
        self._check_everybody()
        return [state[-1] for state in states]

    def _check_digests(self) -> None:
        """A sequence goes on to publish pages after the digests that it has: they must be of its own tokens."""
        for slot, request in enumerate(self.scheduler.table.requests):
            if request is not None and request.page_hashes:
                fresh: list[bytes] = []
                tokens = self.scheduler.table.token_ids[slot, : len(request.page_hashes) * self.size]
                extend_digests(fresh, tokens, self.size, root_digest(request.cache_salt))
                assert request.page_hashes == fresh, "another sequence's digests"

    def _tokens(self, slot: int, end: int) -> list[int]:
        known = int(self.scheduler.table.num_tokens[slot])
        tokens: list[int] = self.scheduler.table.token_ids[slot, : min(end, known)].tolist()
        return tokens if end <= known else [*tokens, self.last_tokens[slot]]

    def _tables(self, row: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        return row.reshape(-1, self.scheduler.table.width)

    def _seen(self, start: int) -> list[int]:
        """The first position that a token at `start` sees in each page table."""
        windows = self.scheduler.table.groups.windows
        return [max(start - window + 1, 0) if window else 0 for window in windows]

    def _places(self, table: npt.NDArray[np.int32], positions: range) -> list[tuple[int, int]]:
        pages = [int(table[position // self.size]) for position in positions]
        assert all(pages), "the null page belongs to nobody"
        return [(page, position % self.size) for page, position in zip(pages, positions, strict=True)]

    def _read(self, places: list[tuple[int, int]]) -> list[int]:
        return [int(self.contents[place]) for place in places]

    def _check_everybody(self) -> None:
        """Each running sequence still has all that it computed, whether it was part of the step or not."""
        table = self.scheduler.table
        for slot, request in enumerate(table.requests):
            if request is not None:
                end = min(int(table.num_computed[slot]), int(table.num_tokens[slot]))
                expected = states_of(table.token_ids[slot, :end].tolist(), request.cache_salt)
                for own, begin in zip(table.tables(slot), self._seen(end), strict=True):
                    got = self._read(self._places(own, range(begin, end)))
                    assert got == expected[begin:], "somebody wrote into a shared page"
        self._check_digests()


class Run:
    """A scheduler and its device; `ahead` steps are scheduled before the host learns the tokens of the first."""

    def __init__(
        self,
        *,
        num_pages: int,
        block_size: int,
        caching: bool,
        ahead: int,
        num_owners: int = 1,
        windows: tuple[int, ...] = (0,),
        **options: Any,
    ) -> None:
        groups = CacheGroups(windows, block_size, options["max_num_batched_tokens"])
        self.pages = KVManager(num_pages, block_size, enable_prefix_caching=caching, groups=groups)
        self.scheduler = Scheduler(pages=self.pages, max_model_len=MAX_MODEL_LEN, **options)
        self.device = Device(self.scheduler, num_pages, block_size)
        self.ahead, self.num_owners, self.options = ahead, num_owners, options
        self.under_way: deque[tuple[StepPlan, list[int]]] = deque()
        self.live: dict[str, Request] = {}
        self.names = 0
        self.found: list[list[int]] = []
        """Prompt and output of every hypothesis so far."""

    def fits(self, prompt: list[int], width: int, max_tokens: int | None) -> bool:
        """The bounds that `BeamOptions.check_fits` sets."""
        longest = MAX_MODEL_LEN if max_tokens is None else min(MAX_MODEL_LEN, len(prompt) + max_tokens)
        needed = self.pages.groups.most_pages(longest, width, len(prompt))
        most = min(self.options["max_num_seqs"], self.options["max_num_batched_tokens"])
        return width <= most and needed < self.pages.num_pages

    def add(self, prompt: list[int], params: SamplingParams, priority: int = 0, salt: str | None = None) -> None:
        self.names += 1
        request = Request(
            request_id=str(self.names),
            prompt_token_ids=np.array(prompt, np.int32),
            params=params,
            priority=priority,
            cache_salt=salt,
            eos_token_ids=(EOS,),
            owner=Owner(str(self.names % self.num_owners)),
        )
        if params.beam_search is not None:
            request.group = BeamGroup.of(request, MAX_MODEL_LEN)
        self.live[request.request_id] = request
        self.scheduler.add(request)

    def step(self) -> None:
        while len(self.under_way) <= self.ahead and (plan := self.scheduler.schedule()) is not None:
            self.scheduler.check_integrity()
            assert plan.num_tokens <= self.options["max_num_batched_tokens"]
            self.under_way.append((plan, self.device.run(plan)))
        self.scheduler.check_integrity()
        if not self.under_way:
            assert not self.live, "stuck"
            return
        plan, states = self.under_way.popleft()
        sampled = np.array([ranked(state).token_ids[0] for state in states], np.int32)
        for request in self.scheduler.update(plan, sampled):
            del self.live[request.request_id]
            assert request.output_token_ids == greedy(request)
        for row in [] if plan.grouped is None else plan.grouped.tolist():
            group, candidates = plan.requests[row].group, ranked(states[row])
            assert isinstance(group, BeamGroup)
            group.take(plan.requests[row], candidates.token_ids, candidates.logprobs)
            if group.search.done:
                self._end(group.leader)
        self.scheduler.check_integrity()

    def _end(self, request: Request) -> None:
        assert isinstance(request.group, BeamGroup)
        del self.live[request.request_id]
        self.scheduler.finish(request.request_id, "stop")
        found = [(each.token_ids, each.score) for each in request.group.hypotheses()]
        self.found += [[*request.prompt_token_ids.tolist(), *tokens] for tokens, _ in found]
        expected = alone(request)
        assert [tokens for tokens, _ in found] == [tokens for tokens, _ in expected]
        assert [score for _, score in found] == pytest.approx([score for _, score in expected])

    def abort(self, name: str) -> None:
        del self.live[name]
        assert self.scheduler.finish(name, "abort") is not None
        self.scheduler.check_integrity()

    def drain(self) -> None:
        # With several owners a request may have to begin again after older ones that came later.
        again = len(self.live) + 1 if self.num_owners > 1 else 1
        for _ in range(4 * (self.ahead + 1) * again * MAX_MODEL_LEN * (len(self.live) + 1)):
            if not self.live:
                break
            self.step()
        assert not self.live, "starved"
        assert not self.scheduler.has_unfinished
        assert self.pages.num_free_pages == self.pages.num_pages - 1, "leaked"


options_of = st.fixed_dictionaries(
    {
        "block_size": st.integers(1, 5),
        "num_pages": st.integers(30, 70),
        "caching": st.booleans(),
        "ahead": st.integers(0, 1),
        "max_num_seqs": st.integers(2, 8),
        "max_num_batched_tokens": st.integers(4, 30),
        "windows": st.just((0,)) | st.sampled_from([(3,), (0, 4), (1, 6)]),
        "policy": st.sampled_from(["fcfs", "priority"]),
        "long_prefill_token_threshold": st.sampled_from([0, 0, 2]),
    }
)
prompts = st.lists(st.integers(0, 2), min_size=1, max_size=16)


class BeamMachine(RuleBasedStateMachine):
    @initialize(options=options_of, num_owners=st.integers(1, 3))
    def start(self, options: dict[str, Any], num_owners: int) -> None:
        # At least what one request of the longest kind needs.
        groups = CacheGroups(options["windows"], options["block_size"], options["max_num_batched_tokens"])
        options["num_pages"] = max(options["num_pages"], 1 + groups.most_pages(MAX_MODEL_LEN))
        self.run = Run(num_owners=num_owners, **options)

    @rule(prompt=prompts, count=st.integers(1, 9), priority=st.integers(-1, 1), salt=st.sampled_from([None, "a"]))
    def add(self, prompt: list[int], count: int, priority: int, salt: str | None) -> None:
        self.run.add(prompt, SamplingParams(max_tokens=min(count, 8), ignore_eos=True), priority, salt)

    @rule(
        prompt=prompts,
        width=st.integers(1, 5),
        max_tokens=st.sampled_from([None, 1, 3, 6]),
        ignore_eos=st.booleans(),
        early_stopping=st.sampled_from([False, True, "never"]),
        priority=st.integers(-1, 1),
        salt=st.sampled_from([None, "a"]),
    )
    def add_beams(
        self,
        prompt: list[int],
        width: int,
        max_tokens: int | None,
        ignore_eos: bool,
        early_stopping: Any,
        priority: int,
        salt: str | None,
    ) -> None:
        if self.run.fits(prompt, width, max_tokens):
            options = BeamOptions(width=width, n=width, early_stopping=early_stopping)
            params = SamplingParams(max_tokens=max_tokens, ignore_eos=ignore_eos, beam_search=options)
            self.run.add(prompt, params, priority, salt)

    @precondition(lambda self: self.run.live)
    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.run.step()

    @precondition(lambda self: self.run.live)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.run.abort(data.draw(st.sampled_from(sorted(self.run.live))))

    def teardown(self) -> None:
        if hasattr(self, "run"):
            self.run.drain()


BeamMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=15, deadline=None)
TestBeamMachine = BeamMachine.TestCase


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("num_owners", [1, 2])
@pytest.mark.parametrize(("windows", "num_pages"), [((0,), 20), ((0, 3), 34)], ids=["one table", "two tables"])
def test_searches_in_a_tiny_pool_finish(
    caching: bool, ahead: int, num_owners: int, windows: tuple[int, ...], num_pages: int
) -> None:
    """Preemption all the time, of whole groups, and every hypothesis is still right."""
    rng = np.random.default_rng(5)
    run = Run(
        num_pages=num_pages,
        windows=windows,
        block_size=3,
        caching=caching,
        ahead=ahead,
        max_num_seqs=9,
        max_num_batched_tokens=12,
        policy="priority",
        long_prefill_token_threshold=0,
        num_owners=num_owners,
    )
    for index in range(12):
        prompt = [1, 2, *rng.integers(0, 3, int(rng.integers(1, 8))).tolist()]
        options = BeamOptions(width=4, n=4, early_stopping="never")
        run.add(prompt, SamplingParams(max_tokens=12, ignore_eos=True, beam_search=options), priority=-index % 5)
        run.add(prompt[1:], SamplingParams(max_tokens=12, ignore_eos=True), priority=-index % 3)
        run.step()
        run.step()
    run.drain()
    assert run.device.num_copies > 50
    assert run.scheduler.num_preemptions > 5


@pytest.mark.parametrize("num_pages", [70, 24], ids=["room for all", "preempted"])
@pytest.mark.parametrize("ahead", [0, 1])
def test_what_beams_have_published_is_read_back(ahead: int, num_pages: int) -> None:
    """Prompts that continue what beams held find their pages, moved and begun again as they were, and only theirs."""
    run = Run(
        num_pages=num_pages,
        block_size=2,
        caching=True,
        ahead=ahead,
        max_num_seqs=9,
        max_num_batched_tokens=20,
        policy="priority",
        long_prefill_token_threshold=0,
    )
    for index in range(4):
        options = BeamOptions(width=4, n=4, early_stopping="never", length_penalty=0.0)
        prompt = [index, 2, 1, index]
        run.add(prompt, SamplingParams(max_tokens=10, ignore_eos=True, beam_search=options), priority=-index)
        run.add([2, index, index], SamplingParams(max_tokens=12, ignore_eos=True), priority=-index)
        for _ in range(6):
            run.step()
    run.drain()
    assert len(run.found) == 16
    assert (run.scheduler.num_preemptions > 0) == (num_pages == 24)
    hits = run.pages.prefix_hits
    for text in run.found:
        run.add([*text, 1], SamplingParams(max_tokens=2, ignore_eos=True))
        run.drain()
    # The device asserts that what is read is what the prompt's tokens would have written.
    assert run.pages.prefix_hits - hits > 16 * 2 * (3 if num_pages == 70 else 1)
