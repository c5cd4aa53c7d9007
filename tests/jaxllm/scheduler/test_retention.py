"""Prefixes of models with sliding windows are still found when others have run since."""

from itertools import count

import numpy as np
import pytest

from jaxllm.kv.groups import CacheGroups
from jaxllm.kv.manager import KVManager
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.scheduler.plan import StepPlan
from jaxllm.scheduler.scheduler import Scheduler

PAGE = 4
WINDOW = 32
GEMMA = (0, *[WINDOW] * 5)
"""One table of layers without a window, and five with one."""


class Server:
    """A scheduler without a device: tokens are drawn at random, so that answers differ."""

    def __init__(
        self, num_pages: int, windows: tuple[int, ...] = GEMMA, *, interval: int | None = 0, ahead: int = 0,
        page: int = PAGE, budget: int = 64, slots: int = 8,
    ) -> None:  # fmt: skip
        groups = CacheGroups(windows, page, budget, margin=1)
        self.page, self.ahead = page, ahead
        self.pages = KVManager(num_pages + 1, page, groups=groups, retention_interval=interval)
        self.scheduler = Scheduler(
            max_num_seqs=slots, max_num_batched_tokens=budget, max_model_len=10_000, pages=self.pages
        )
        self.rng = np.random.default_rng(0)
        self.names = count()
        self.most_held = 0
        self.under_way: list[StepPlan] = []

    def tokens(self, length: int) -> list[int]:
        found: list[int] = self.rng.integers(3, 30_000, length).tolist()
        return found

    def add(self, prompt: list[int], outputs: int = 1) -> Request:
        request = Request(
            request_id=str(next(self.names)),
            prompt_token_ids=np.array(prompt, np.int32),
            params=SamplingParams(max_tokens=outputs),
        )
        self.scheduler.add(request)
        return request

    def step(self) -> None:
        while len(self.under_way) <= self.ahead and (plan := self.scheduler.schedule()) is not None:
            self.under_way.append(plan)
        self.most_held = max(self.most_held, self.pages.num_held_pages)
        if self.under_way:
            plan = self.under_way.pop(0)
            self.scheduler.update(plan, self.rng.integers(3, 30_000, plan.num_rows).astype(np.int32))

    def drain(self) -> None:
        while self.scheduler.has_unfinished:
            self.step()
        self.under_way.clear()

    def run(self, prompt: list[int], outputs: int = 1) -> Request:
        request = self.add(prompt, outputs)
        self.drain()
        return request

    def hit(self, prompt: list[int]) -> int:
        """Tokens that a request with this prompt would find."""
        request = Request(
            request_id="?", prompt_token_ids=np.array(prompt, np.int32), params=SamplingParams(max_tokens=1)
        )
        return self.pages.num_cached_tokens(request)


def whole(request: Request) -> list[int]:
    return [*request.prompt_token_ids.tolist(), *request.output_token_ids]


def floor(tokens: int, page: int = PAGE) -> int:
    return tokens // page * page


@pytest.mark.parametrize("ahead", [0, 1])
def test_sessions_in_turn_keep_their_hits(ahead: int) -> None:
    """A hundred sessions whose running requests would hold a quarter of the pages, four turns of each."""
    lengths = [100 + 3 * index for index in range(100)]
    groups = CacheGroups(GEMMA, PAGE, 64, margin=1)
    held = sum(groups.usual_pages(length + 4 * 40) for length in lengths)
    server = Server(4 * held, ahead=ahead)
    histories = [server.tokens(length) for length in lengths]
    for turn in range(4):
        for index, history in enumerate(histories):
            prompt = history + server.tokens(17) if turn else history
            request = server.run(prompt, 23)
            # All but the last token of the turn before were computed.
            assert request.num_cached_tokens == (floor(len(history) - 1) if turn else 0)
            histories[index] = whole(request)
    server.scheduler.check_integrity()


def test_one_that_holds_little_leaves_the_prefixes_of_others() -> None:
    """Whatever it is long, it takes the pages again that left its window."""
    server = Server(1000, (WINDOW,), budget=32)
    others = [server.run(server.tokens(WINDOW)) for _ in range(500 * PAGE // WINDOW)]
    idle = set(server.pages._pool._idle)
    assert len(idle) == 496
    server.run(server.tokens(6000), 3000)
    assert server.most_held < 2 * WINDOW // PAGE + 4
    assert idle <= set(server.pages._pool._idle)
    assert all(server.hit(whole(other)) == WINDOW for other in others)


@pytest.mark.parametrize("windows", [GEMMA, (WINDOW, 0), (WINDOW,), (WINDOW, 2 * WINDOW), (WINDOW - 1, 0), (5, 0)])
@pytest.mark.parametrize("page", [1, 4, 16])
@pytest.mark.parametrize("length", [300, 301, 303, 304, 319])
def test_ends_are_found_under_pressure(windows: tuple[int, ...], page: int, length: int) -> None:
    """The prompt's end, what differs within its last page, and the answer's end: after spare pages were overwritten."""
    server = Server(80_000 // page, windows, page=page)
    request = server.run(server.tokens(length), 90)
    _overwrite_spare_pages(server)
    prompt, everything = request.prompt_token_ids.tolist(), whole(request)
    assert server.hit(prompt) == floor(length - 1, page)
    assert server.hit([*prompt, 1, 2, 3]) == floor(length, page)
    assert server.hit([*prompt[:-1], 1, 2, 3]) == floor(length - 1, page)
    assert server.hit([*everything, 1, 2, 3]) == floor(length + 90 - 1, page)


def _overwrite_spare_pages(server: Server) -> None:
    pool = server.pages._pool
    pages = server.pages.grow(pool._num_blank + len(pool._spare))
    assert pages is not None
    server.pages.release_some(pages)
    server.scheduler.check_integrity()


@pytest.mark.parametrize("windows", [GEMMA, (WINDOW, 0), (WINDOW,), (WINDOW, 2 * WINDOW)])
def test_what_prompts_share_is_found_from_the_third_on(windows: tuple[int, ...]) -> None:
    server = Server(5000, windows)
    shared = server.tokens(150)
    hits = []
    for _ in range(3):
        _overwrite_spare_pages(server)
        hits.append(server.run(shared + server.tokens(200)).num_cached_tokens)
    assert hits == [0, 0, floor(150)]


def test_while_there_is_room_it_is_found_by_the_second() -> None:
    server = Server(5000)
    shared = server.tokens(150)
    assert server.run(shared + server.tokens(200)).num_cached_tokens == 0
    assert server.run(shared + server.tokens(200)).num_cached_tokens == floor(150)
    _overwrite_spare_pages(server)
    assert server.hit(shared + server.tokens(200)) == floor(150), "what was found once is worth keeping"


@pytest.mark.parametrize(("interval", "hits"), [(0, 0), (100, 100), (99, 100), (40, 120), (None, 148), (10**6, 0)])
def test_windows_are_kept_at_intervals(interval: int | None, hits: int) -> None:
    """In whole pages, in prompts and in answers."""
    server = Server(5000, interval=interval)
    tokens = server.tokens(400)
    server.run(tokens)
    other = server.run(server.tokens(20), 400)
    _overwrite_spare_pages(server)
    assert server.hit(tokens[:150] + server.tokens(50)) == hits
    assert server.hit(whole(other)[:150] + server.tokens(50)) == (hits or floor(20))


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("steps", [3, 4, 30])
def test_one_that_was_preempted_or_aborted_finds_its_prefix(ahead: int, steps: int) -> None:
    """After its last chunk, or its last full page."""
    server = Server(5000, ahead=ahead)
    request = server.add(server.tokens(300), 100)
    for _ in range(steps):
        server.step()
    computed = server.scheduler._under_way.num_collected(request.slot)
    expected = floor(computed)
    assert expected >= 3 * 64
    server.scheduler.finish(request.request_id, "abort")
    server.drain()
    _overwrite_spare_pages(server)
    assert server.hit([*whole(request), *server.tokens(9)]) == expected


def test_two_that_computed_the_same_at_once() -> None:
    """Their answers differ, and only one of them has the pages that are found."""
    server = Server(5000)
    prompt = server.tokens(60)
    first, second = server.add(prompt, 20), server.add(prompt, 90)
    server.drain()
    _overwrite_spare_pages(server)
    assert server.hit([*whole(first), 1]) == floor(79)
    assert server.hit([*whole(second), 1]) == floor(149)
