"""Requests with every parameter drawn at random get the same with drafts and without, however these turn out."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from jaxllm.engine.engine import Engine
from jaxllm.engine.features import speculation
from jaxllm.errors import RequestError
from jaxllm.requests.request import Request
from tests.e2e.driving import Answer, make_engine, request
from tests.e2e.test_drawn_requests import drawn
from tests.e2e.test_speculation import ScriptedDrafter, all_of_them
from tests.thinned import EVERY_CASE

MOST_DRAFTS = 8
OPTIONS: dict[str, Any] = {
    "max_num_seqs": 16, "max_model_len": 512, "block_size": 4, "num_gpu_blocks_override": 130,
    "max_num_batched_tokens": 64, "enforce_eager": False,
}  # fmt: skip
"""So few pages that some requests are preempted."""
ASKED = st.lists(st.tuples(st.integers(0, 2**32 - 1), st.sampled_from([None, *range(MOST_DRAFTS + 1)])), min_size=1,
                 max_size=8)  # fmt: skip


@pytest.fixture(scope="module")
def plain() -> Iterator[Engine]:
    """An engine without drafts."""
    made = make_engine(**OPTIONS)
    yield made
    made.close()


@pytest.fixture(scope="module")
def drafting() -> Iterator[Engine]:
    made = make_engine(**OPTIONS, spec_method="ngram", num_speculative_tokens=MOST_DRAFTS)
    yield made
    made.close()


class Drawing:
    """Makes the requests that are drawn. (Its arguments would be too long to show in a failure.)"""

    def __init__(self, prompts: list[list[int]], letters: list[int]) -> None:
        self._prompts, self._letters = prompts, letters

    def requests(self, asked: list[tuple[int, int | None]]) -> list[Request]:
        """Requests of these numbers, with at most so many drafts in a step."""
        made = []
        for index, (number, most) in enumerate(asked):
            rng = np.random.default_rng(number)
            params = {"seed": number, **drawn(rng, self._letters), "speculative_tokens": most}
            made.append(request(index, self._prompts[int(rng.integers(len(self._prompts)))][:120], **params))
        return made


@pytest.fixture(scope="module")
def drawing(prompts: list[list[int]], tokenizer: Any) -> Drawing:
    return Drawing(prompts, tokenizer("a", add_special_tokens=False)["input_ids"])


def said(engine: Engine, requests: Iterable[Request]) -> dict[str, Any]:
    """The answer to each request, or the reason why there is none."""
    found: dict[str, Any] = {}
    for each in requests:
        try:
            engine.add_request(each)
            found[each.request_id] = Answer()
        except RequestError as error:
            found[each.request_id] = str(error)
    while engine.has_unfinished_requests():
        for output in engine.step():
            assert not output.is_fault, output
            answer = found[output.request_id]
            answer.token_ids += output.token_ids
            answer.logprobs += output.logprobs or []
            answer.prompt_logprobs = output.prompt_logprobs or answer.prompt_logprobs
            answer.finish_reason, answer.stop_reason = output.finish_reason, output.refusal or output.stop_reason
            answer.sequences = output.sequences
    engine.scheduler.check_integrity()
    assert engine.pages.num_held_pages == 0
    return found


def check_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Tokens are the same to the bit, and log-probabilities as far as steps of other sizes round alike."""
    assert found.keys() == wanted.keys()
    for name, answer in wanted.items():
        own = found[name]
        if isinstance(answer, str):
            assert own == answer
            continue
        assert (own.finish_reason, own.stop_reason) == (answer.finish_reason, answer.stop_reason), name
        if answer.finish_reason == "abort":
            continue  # It got an error; tokens before may have come with the step that failed.
        assert own.token_ids == answer.token_ids, name
        for some, others in ((own.logprobs, answer.logprobs), (own.prompt_logprobs, answer.prompt_logprobs)):
            pairs = list(zip(some or (), others or (), strict=True))
            assert all(one == other for one, other in pairs if one is None or other is None)
            numbers = [
                ([one.logprob, *one.top_logprobs], [other.logprob, *other.top_logprobs])
                for one, other in pairs
                if one is not None
            ]
            for one_row, other_row in numbers:
                np.testing.assert_allclose(one_row, other_row, atol=1e-3, err_msg=name)
        # Beams that are as likely are told apart by how steps round.
        best = [[each.score for each in answers.sequences or ()][:1] for answers in (own, answer)]
        assert best[0] == pytest.approx(best[1], rel=1e-3), name


@settings(
    max_examples=150 if EVERY_CASE else 10, deadline=None, derandomize=True, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
@given(ASKED, st.sampled_from(["right", "wrong", "mixed"]))
def test_the_same_with_and_without(
    plain: Engine, drafting: Engine, drawing: Drawing, asked: list[tuple[int, int | None]], kind: str
) -> None:
    try:
        compare(plain, drafting, drawing, asked, kind)
    except AssertionError:
        # Requests join a batch when their grammar is compiled, and with pages of 4 tokens and small chunks last bits
        # follow the batch, with drafts and without. What drafts change, they change again.
        compare(plain, drafting, drawing, asked, kind)


def compare(plain: Engine, drafting: Engine, drawing: Drawing, asked: list[tuple[int, int | None]], kind: str) -> None:
    """Run the same requests with drafts and without."""
    wanted = said(plain, drawing.requests(asked))
    answers = {name: answer for name, answer in wanted.items() if isinstance(answer, Answer)}
    assert drafting._speculation is not None
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(drafting._speculation, "_drafter", ScriptedDrafter(answers, kind))
        patched.setattr(speculation, "choose_amounts", all_of_them)
        check_same(said(drafting, drawing.requests(asked)), wanted)


def test_samples_after_drafts_have_the_probabilities_that_they_say(
    plain: Engine, drafting: Engine, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """How often the likeliest token is drawn, by how likely it is: chi-squared with a bin for each tenth."""
    samples = 100_000 if EVERY_CASE else 1_200
    asked = {"temperature": 1.0, "max_tokens": 40, "ignore_eos": True, "logprobs": 1}
    numbers = range(samples // 40)
    guesses = said(plain, [request(i, prompts[i % 100][:40], **asked, seed=i) for i in numbers])
    assert drafting._speculation is not None
    monkeypatch.setattr(drafting._speculation, "_drafter", ScriptedDrafter(guesses, "mixed"))
    monkeypatch.setattr(speculation, "choose_amounts", all_of_them)
    before = drafting.stats().drafts
    found = said(drafting, [request(i, prompts[i % 100][:40], **asked, seed=i) for i in numbers])
    assert drafting.stats().drafts.since(before).num_accepted_tokens > samples / 10
    drawn_each = [each for answer in found.values() for each in answer.logprobs]
    likely = np.exp([each.top_logprobs[0] for each in drawn_each])
    hits = np.array([each.token_id == each.top_ids[0] for each in drawn_each])
    tenths = np.minimum((10 * likely).astype(int), 9)
    squares = 0.0
    for tenth in range(10):
        own = likely[tenths == tenth]
        if len(own):
            squares += (hits[tenths == tenth].sum() - own.sum()) ** 2 / (own * (1 - own)).sum()
    assert squares < 35.6, "which one of ten thousand would exceed"


def test_pages_hold_what_was_accepted(
    plain: Engine, drafting: Engine, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever finds the pages of an answer goes on as somebody who computes it."""
    asked = {"temperature": 1.0, "max_tokens": 24, "ignore_eos": True}
    first = said(plain, [request(i, prompts[i][:80], **asked, seed=i) for i in range(6)])
    assert drafting._speculation is not None
    monkeypatch.setattr(drafting._speculation, "_drafter", ScriptedDrafter(first, "mixed"))
    monkeypatch.setattr(speculation, "choose_amounts", all_of_them)
    for i in range(6):
        drafting.reset_prefix_cache()
        check_same(said(drafting, [request(i, prompts[i][:80], **asked, seed=i)]), {str(i): first[str(i)]})
        longer = [*prompts[i][:80], *first[str(i)].token_ids]
        hits = drafting.pages.prefix_hits
        further = {"temperature": 0, "max_tokens": 6, "logprobs": 3}
        warm = said(drafting, [request("w", longer, **further, speculative_tokens=0)])
        assert drafting.pages.prefix_hits >= hits + len(longer) - 8
        drafting.reset_prefix_cache()
        check_same(said(drafting, [request("w", longer, **further, speculative_tokens=0)]), warm)
