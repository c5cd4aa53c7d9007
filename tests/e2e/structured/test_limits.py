"""Tokens are limited wherever they come from: with other parameters, at the ends, in reasoning, without a step."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from jaxllm.engine.engine import Engine
from jaxllm.requests.outputs import EngineOutput
from tests.e2e.driving import make_engine, request, run

SCHEMA = {
    "type": "object",
    "properties": {"a rather long name of a property": {"const": "and a long value, too"}, "n": {"enum": [1, 2]}},
    "required": ["a rather long name of a property", "n"],
    "additionalProperties": False,
}
JSON = {"json": SCHEMA, "disable_any_whitespace": True}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """Pages of 4 tokens, so that forced tokens go over several."""
    made = make_engine(max_model_len=256, max_num_seqs=20, block_size=4, max_num_batched_tokens=64)
    yield made
    made.close()


def text(tokenizer: Any, token_ids: list[int]) -> str:
    found: str = tokenizer.decode(token_ids, skip_special_tokens=True)
    return found


def steps_of(engine: Engine, **params: Any) -> tuple[int, list[int], str | None]:
    """How many steps a request takes, its tokens, and why it ended."""
    engine.add_request(request("x", [5, 6, 7], **params))
    steps, tokens, reason = 0, [], None
    while engine.has_unfinished_requests():
        for output in engine.step():
            assert len(output.logprobs or ()) == (len(output.token_ids) if "logprobs" in params else 0)
            tokens += output.token_ids
            reason = output.finish_reason
        steps += engine.stats().num_steps
    engine.scheduler.check_integrity()
    assert not engine._features.active
    return steps, tokens, reason


def test_forced_tokens_take_no_steps(engine: Engine, tokenizer: Any) -> None:
    steps, tokens, reason = steps_of(engine, temperature=0, max_tokens=100, structured_outputs=JSON)
    slow, same, _ = steps_of(engine, temperature=0, max_tokens=100, structured_outputs=JSON, logprobs=0)
    assert json.loads(text(tokenizer, tokens))["n"] in (1, 2)
    assert reason == "stop"
    assert json.loads(text(tokenizer, same)) == json.loads(text(tokenizer, tokens))
    assert slow >= len(same), "with log-probabilities every token is sampled"
    assert steps <= len(tokens) // 2


DIGITS = "3141592653589793"
"""Each is one token, however the text is cut into tokens."""


def digits_then_letters(count: int) -> dict[str, Any]:
    """As many forced tokens, and some that the model chooses by what it read."""
    return {"regex": f"{DIGITS[:count]}[a-z ]{{12}}"}


def test_forced_tokens_are_read_back_wherever_their_pages_end(engine: Engine) -> None:
    """All requests at once: where a page is not told, they write over each other's tokens."""

    def answers(**more: Any) -> dict[str, list[int]]:
        requests = [
            request(f"{length} {count}", [30 + count, *range(5, 5 + length)], temperature=0, max_tokens=40,
                    structured_outputs=digits_then_letters(count), **more)
            for length in range(1, 5) for count in range(4, 16)
        ]  # fmt: skip
        # Which of the end tokens ends them does not matter.
        return {name: answer.token_ids[:-1] for name, answer in run(engine, requests).items()}

    forced = answers()
    engine.reset_prefix_cache()
    assert forced == answers(logprobs=0), "with log-probabilities every token is sampled"


@pytest.mark.parametrize(
    "pushes",
    [{"presence_penalty": 2.0}, {"frequency_penalty": 2.0}, {"repetition_penalty": 5.0}],
    ids=lambda pushes: next(iter(pushes)),
)
def test_forced_tokens_count_for_penalties(engine: Engine, tokenizer: Any, pushes: dict[str, Any]) -> None:
    """The digits that are forced must be as unlikely afterwards as if the model had chosen them."""
    form = {"regex": "7777111122223333[0-9]{12}"}
    given = {"temperature": 0, "max_tokens": 40, "structured_outputs": form, **pushes}
    _, tokens, _ = steps_of(engine, **given)
    _, sampled, _ = steps_of(engine, **given, logprobs=0)
    assert text(tokenizer, tokens) == text(tokenizer, sampled)


def test_a_forced_token_that_is_forbidden_is_not_given(engine: Engine, tokenizer: Any) -> None:
    (seven,) = tokenizer("7", add_special_tokens=False)["input_ids"]
    form = {"regex": "x?777[0-9]"}
    _, tokens, reason = steps_of(engine, max_tokens=9, structured_outputs=form, bad_words_token_ids=[[seven, seven]])
    assert reason == "abort"
    assert tokens.count(seven) == 1


def test_lengths_and_stop_tokens_hold_for_forced_tokens(engine: Engine) -> None:
    _, whole, _ = steps_of(engine, temperature=0, max_tokens=100, structured_outputs=JSON)
    for count in (1, 2, 5, len(whole) - 1):
        _, tokens, reason = steps_of(engine, temperature=0, max_tokens=count, structured_outputs=JSON)
        assert (tokens, reason) == (whole[:count], "length")
    stops = {"stop_token_ids": [whole[4]]}
    _, tokens, reason = steps_of(engine, temperature=0, max_tokens=100, structured_outputs=JSON, **stops)
    assert (tokens, reason) == (whole[: whole.index(whole[4]) + 1], "stop")


def test_the_output_ends_with_its_grammar(engine: Engine, tokenizer: Any) -> None:
    both = {"ignore_eos": True, "logprobs": 1}
    for more in (
        {},
        {"ignore_eos": True},
        {"min_tokens": 90},
        {"logprobs": 1},
        both,
        {"min_tokens": 90, "logprobs": 1},
    ):
        _, tokens, reason = steps_of(engine, max_tokens=100, structured_outputs={"choice": ["yes", "no"]}, **more)
        assert text(tokenizer, tokens) in ("yes", "no"), more
        assert reason == "stop", more


def test_where_nothing_is_left_the_request_is_refused(engine: Engine, tokenizer: Any) -> None:
    (yes,) = tokenizer("yes", add_special_tokens=False)["input_ids"][:1]
    engine.add_request(request("other", [5, 6], max_tokens=10, ignore_eos=True))
    stuck = {"structured_outputs": {"regex": "[0-9]+"}, "allowed_token_ids": [yes]}
    engine.add_request(request("stuck", [5, 6], max_tokens=10, **stuck))
    found = drain(engine)
    assert len(found["other"][0]) == 10
    (*_, last) = found["stuck"][1]
    assert last.finish_reason == "abort"
    assert "no token can follow" in (last.refusal or "")
    assert found["stuck"][0] == []


def drain(engine: Engine) -> dict[str, tuple[list[int], list[EngineOutput]]]:
    """The tokens and the outputs of each request."""
    found: dict[str, tuple[list[int], list[EngineOutput]]] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            tokens, outputs = found.setdefault(output.request_id, ([], []))
            tokens += output.token_ids
            outputs.append(output)
    engine.scheduler.check_integrity()
    return found


def test_a_grammar_that_cannot_be_compiled_refuses_its_request_alone(engine: Engine) -> None:
    engine.add_request(request("good", [5, 6], max_tokens=10, structured_outputs={"choice": ["a"]}))
    engine.add_request(request("bad", [5, 6], max_tokens=10, structured_outputs={"grammar": "start: start"}))
    engine.add_request(request("gone", [5, 6], max_tokens=10, structured_outputs={"grammar": 'start: "a" | start'}))
    engine.abort_request(["gone"])
    found = drain(engine)
    assert found["good"][1][-1].finish_reason == "stop"
    assert found["gone"][1][-1].refusal is None
    (refused,) = found["bad"][1]
    assert refused.refused_parameter == "grammar"
    assert refused.finish_reason == "abort"


def test_a_grammar_that_becomes_too_complex_refuses_its_request_alone(engine: Engine, tokenizer: Any) -> None:
    steep = 'start: e\ne: e e | "a" | "b" | /[a-z ]/ | e e e'
    words = [token for token in range(300, 1500) if len(tokenizer.decode([token])) > 5]
    engine.add_request(request("other", [5, 6], max_tokens=10, ignore_eos=True))
    pushed = dict.fromkeys(words, 50.0)
    engine.add_request(
        request("steep", [5, 6], max_tokens=90, logit_bias=pushed, structured_outputs={"grammar": steep})
    )
    found = drain(engine)
    assert len(found["other"][0]) == 10
    assert found["steep"][1][-1].refusal is not None


@pytest.mark.parametrize("budget", [0, 1, 5])
def test_reasoning_is_free_until_it_ends_or_is_ended(engine: Engine, tokenizer: Any, budget: int) -> None:
    marker = [600, 601, 602]
    free = {"temperature": 0, "max_tokens": 60, "ignore_eos": True}
    alone = run(engine, [request("a", [5, 6, 7], **free)])["a"].token_ids
    limit = {"reasoning_end_token_ids": marker, "thinking_token_budget": budget}
    for form in (None, {"choice": ["yes"]}):
        for more in ({}, {"logprobs": 0}):
            _, tokens, reason = steps_of(engine, **free, **limit, **more, structured_outputs=form)
            assert tokens[:budget] == alone[:budget]
            assert tokens[budget : budget + 3] == marker
            if form is not None:
                assert text(tokenizer, tokens[budget + 3 :]) == "yes"
                assert reason == "stop"
            else:
                assert len(tokens) == 60


@pytest.mark.parametrize("budget", [0, 4])
def test_words_lead_over_to_the_answer_when_the_budget_is_used_up(engine: Engine, tokenizer: Any, budget: int) -> None:
    closing = [700, 701, 600, 601]
    given: dict[str, Any] = {"temperature": 0, "max_tokens": 60, "thinking_token_budget": budget}
    given |= {"reasoning_end_token_ids": [600, 601], "reasoning_closing_token_ids": closing}
    _, tokens, reason = steps_of(engine, **given, structured_outputs={"choice": ["yes"]})
    assert tokens[budget : budget + 4] == closing
    assert (text(tokenizer, tokens[budget + 4 :]), reason) == ("yes", "stop")


def test_reasoning_ends_the_text_only_where_no_grammar_follows(engine: Engine, tokenizer: Any) -> None:
    end = engine.info.eos_token_ids[0]
    given: dict[str, Any] = {
        "temperature": 0, "max_tokens": 60, "logit_bias": {end: 100.0},
        "reasoning_end_token_ids": [600, 601], "thinking_token_budget": 4,
    }  # fmt: skip
    _, tokens, reason = steps_of(engine, **given, structured_outputs={"choice": ["yes"]})
    assert end not in tokens[:6]
    assert tokens[4:6] == [600, 601]
    assert (text(tokenizer, tokens[6:]), reason) == ("yes", "stop")
    _, tokens, reason = steps_of(engine, **given)
    assert (tokens, reason) == ([end], "stop")


def test_reasoning_that_ends_by_itself(engine: Engine, tokenizer: Any) -> None:
    alone = run(engine, [request("a", [5, 6, 7], temperature=0, max_tokens=9, ignore_eos=True)])["a"].token_ids
    _, tokens, _ = steps_of(
        engine, temperature=0, max_tokens=60, reasoning_end_token_ids=alone[3:5], structured_outputs={"choice": ["yes"]}
    )
    end = next(place for place in range(2, 10) if alone[place - 2 : place] == alone[3:5])
    assert tokens[:end] == alone[:end]
    assert text(tokenizer, tokens[end:]) == "yes"


def test_requests_of_many_kinds_give_what_they_give_alone(engine: Engine) -> None:
    forms = [None, JSON, {"choice": ["a", "bb ccc"]}, {"regex": "[a-z]{1,8}( [a-z]{1,8}){0,9}"}, {"json_object": True}]
    requests = [(number, forms[number % 5]) for number in range(45)]

    def made(number: int, form: Any) -> Any:
        return request(number, [5 + number, 6, 7], seed=number, max_tokens=40, structured_outputs=form)

    together = run(engine, [made(*each) for each in requests])
    for each in requests[::4]:
        alone = run(engine, [made(*each)])[str(each[0])]
        assert alone.token_ids == together[str(each[0])].token_ids


@pytest.mark.parametrize("regex", ["[0-9]{4}", "hello world 1234567[0-9]", "[ab]c*d{20}"])
@pytest.mark.parametrize("max_tokens", [3, 9, 100])
def test_all_tokens_of_a_constrained_request_are_counted(engine: Engine, regex: str, max_tokens: int) -> None:
    engine.reset_prefix_cache()
    prompt = [5, 6, 7]
    engine.add_request(
        request("counted", prompt, temperature=0, max_tokens=max_tokens, structured_outputs={"regex": regex})
    )
    tokens = counted = 0
    while engine.has_unfinished_requests():
        tokens += sum(len(output.token_ids) for output in engine.step())
        stats = engine.stats()
        counted += stats.num_tokens + stats.num_last
    assert counted == len(prompt) + tokens
