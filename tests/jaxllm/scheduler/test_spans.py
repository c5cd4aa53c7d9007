"""No step splits a span, every prompt goes on, and nobody waits for long."""

from collections import deque
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxllm.kv.manager import KVManager
from jaxllm.requests.media import PromptMedia
from jaxllm.requests.owners import NOBODY, Owner
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.requests.spans import longest_span
from jaxllm.scheduler.plan import StepPlan
from jaxllm.scheduler.scheduler import Scheduler

SEQUENCES, LONGEST = 4, 12
Spans = list[tuple[int, int]]


def made(name: str, length: int, spans: Spans, *, output: int = 3, owner: Owner = NOBODY, first: int = 0) -> Request:
    """A request whose prompt of so many tokens has spans; those of the same `first` token begin alike."""
    request = Request(
        request_id=name,
        prompt_token_ids=np.arange(length, dtype=np.int32) + 1000 * first,
        params=SamplingParams(max_tokens=output, ignore_eos=True),
        owner=owner,
    )
    if spans:
        places = np.concatenate([np.arange(begin, end) for begin, end in spans]).astype(np.int32)
        keys = tuple(repr([span for span in spans if span[0] < 4 * page + 4]).encode() for page in range(length // 4))
        request.media = PromptMedia((), places, keys, np.array(spans, np.int32))
        assert longest_span(request.media.spans) <= LONGEST
    return request


def check(plan: StepPlan, budget: int) -> None:
    """Every row ends outside of spans."""
    assert 0 < plan.num_tokens <= budget
    assert (plan.num_new_tokens > 0).all()
    for request, start, count in zip(plan.requests, plan.starts.tolist(), plan.num_new_tokens.tolist(), strict=True):
        for begin, end in [] if request.media is None else request.media.spans.tolist():
            assert not begin < start + count < end, (request.request_id, start, count, begin, end)


def run(requests: list[Request], *, ahead: int = 1, num_pages: int = 200, **options: Any) -> dict[str, int]:
    """Run all to their end, some coming later than others; the number of the step with which each ends."""
    budget = options.setdefault("max_num_batched_tokens", LONGEST + SEQUENCES - 1)
    scheduler = Scheduler(
        pages=KVManager(num_pages, 4), max_num_seqs=SEQUENCES, max_model_len=100, keeps_spans=True, **options
    )
    coming, under_way, steps, ends = deque(requests), deque[StepPlan](), 0, dict[str, int]()
    while coming or scheduler.has_unfinished:
        if coming:
            scheduler.add(coming.popleft())
        while len(under_way) <= ahead and (plan := scheduler.schedule()) is not None:
            check(plan, budget)
            scheduler.check_integrity()
            under_way.append(plan)
        assert under_way, "nothing goes on"
        steps += 1
        assert steps < 2000, "somebody starves"
        plan = under_way.popleft()
        ends |= {each.request_id: steps for each in scheduler.update(plan, np.full(plan.num_rows, 5, np.int32))}
        scheduler.check_integrity()
    return ends


@st.composite
def drawn_spans(draw: st.DrawFn, length: int) -> Spans:
    spans, place = [], 0
    while place < length and draw(st.booleans()):
        begin = place + draw(st.integers(0, 6))
        end = begin + draw(st.integers(2, LONGEST))
        if end > length:
            break
        spans.append((begin, end))
        place = end
    return spans


@st.composite
def drawn_requests(draw: st.DrawFn) -> list[Request]:
    found = []
    for number in range(draw(st.integers(1, 8))):
        length = draw(st.integers(1, 60))
        owner = draw(st.sampled_from([NOBODY, Owner("ada"), Owner("ben", 3.0)]))
        spans, output = draw(drawn_spans(length)), draw(st.integers(1, 12))
        found.append(made(str(number), length, spans, output=output, owner=owner, first=draw(st.integers(0, 2))))
        found[-1].priority = draw(st.integers(0, 2))
    return found


@settings(max_examples=150, deadline=None)
@given(
    requests=drawn_requests(),
    more=st.sampled_from([0, 1, 5, 40]),
    threshold=st.sampled_from([0, 1, 5]),
    policy=st.sampled_from(["fcfs", "priority"]),
    num_pages=st.sampled_from([27, 40, 200]),
    ahead=st.integers(0, 2),
)
def test_no_step_splits_a_span(
    requests: list[Request], more: int, threshold: int, policy: str, num_pages: int, ahead: int
) -> None:
    run(
        requests,
        ahead=ahead,
        num_pages=num_pages,
        policy=policy,
        max_num_batched_tokens=LONGEST + SEQUENCES - 1 + more,
        long_prefill_token_threshold=threshold,
    )


def test_a_chunk_ends_before_a_span_that_does_not_fit() -> None:
    assert run([made("one", 30, [(10, 20), (22, 30)], output=1)], ahead=0) == {"one": 3}


def test_a_span_is_computed_among_many_decodes() -> None:
    requests = [made(str(number), 1, [], output=60, first=number) for number in range(SEQUENCES - 1)]
    ends = run([*requests, made("image", 12, [(0, 12)], output=1, first=9)], ahead=0)
    assert ends["image"] == SEQUENCES


def test_spans_of_one_owner_beside_long_prompts_of_another() -> None:
    """The owners' shares are shorter than the span: it is computed whole in every other step, and the others go on."""
    texts = [made(str(number), 90, [], owner=Owner("ada"), output=1, first=number) for number in range(3)]
    image = made("image", 36, [(0, 12), (12, 24), (24, 36)], owner=Owner("ben"), output=1, first=9)
    ends = run([texts[0], image, *texts[1:]], ahead=0)
    # Of 15 tokens in each step, a span leaves 3 to the texts.
    assert ends["image"] <= 6
    assert ends["0"] <= 10
