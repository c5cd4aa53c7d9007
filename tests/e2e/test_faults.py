"""An exception in host code for one request ends that request, whatever it was doing; all others get their tokens."""

from collections.abc import Callable, Collection, Iterator
from itertools import product
from typing import Any

import pytest

from jaxllm.beam.group import BeamGroup
from jaxllm.engine import step_outputs
from jaxllm.engine.engine import Engine
from jaxllm.engine.features import logprobs
from jaxllm.engine.features.beam_search import BeamSearches
from jaxllm.engine.features.constrained import ConstrainedDecoding
from jaxllm.engine.features.feature import StepFeature
from jaxllm.engine.features.logits_processors import Processing
from jaxllm.engine.features.logprobs import PromptLogprobs
from jaxllm.errors import EngineError, RequestFaultError
from jaxllm.requests.beam_options import BeamOptions
from jaxllm.requests.request import Request
from jaxllm.structured.constraint import Constraint
from jaxllm.structured.constraints import Constraints
from tests.e2e import processors
from tests.e2e.driving import Answer, make_engine, request
from tests.thinned import thinned

KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "seeded": {"seed": 3},
    "logprobs": {"temperature": 0, "logprobs": 3},
    "penalties": {"seed": 4, "presence_penalty": 1.0, "bad_words_token_ids": [[5, 6], [7]]},
    "grammar": {"seed": 5, "structured_outputs": {"regex": "[a-z ]{60}"}},
    "grammar with logprobs": {"seed": 6, "structured_outputs": {"json": {"type": "object"}}, "logprobs": 1},
    "forced tokens": {"temperature": 0, "structured_outputs": {"regex": "A rather long beginning[0-9]{30}"}},
    "budget": {"seed": 7, "thinking_token_budget": 3, "reasoning_end_token_ids": [40, 41]},
    "beams": {"beam_search": BeamOptions(width=3)},
    "more beams": {"beam_search": BeamOptions(width=2, length_penalty=2.0)},
    "prompt": {"temperature": 0, "prompt_logprobs": 2},
    "prompt, seeded": {"seed": 8, "prompt_logprobs": 0, "logprobs": 0},
    "processed": {"seed": 9, "extra_args": {"bias": {"5": 6.0, "40": 5.0}}},
    "compiled": {"seed": 10, "extra_args": {"ban": [5, 40]}},
    "both": {"seed": 11, "extra_args": {"bias": {"5": 3.0}}, "structured_outputs": {"regex": "[0-9]{60}"}},
}
OF: dict[type[StepFeature], set[str]] = {
    ConstrainedDecoding: {
        "grammar",
        "grammar with logprobs",
        "forced tokens",
        "budget",
        "processed",
        "compiled",
        "both",
    },
    BeamSearches: {"beams", "more beams"},
    PromptLogprobs: {"prompt", "prompt, seeded"},
}
"""The kinds that each feature handles."""

HOOKS = [
    "on_step_begin", "before_schedule", "on_scheduled", "before_collect", "on_collected", "on_accept", "on_outputs",
]  # fmt: skip


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    made = make_engine(
        max_model_len=256, max_num_seqs=24, max_num_batched_tokens=128,
        logits_processors=[processors.Bias, processors.CompiledBans],
    )  # fmt: skip
    yield made
    made.close()


@pytest.fixture(scope="module")
def undisturbed(engine: Engine, prompts: list[list[int]]) -> dict[str, Answer]:
    answers, faults = drive(engine, every_kind(prompts))
    assert not faults
    return answers


def every_kind(prompts: list[list[int]], names: Collection[str] = KINDS) -> list[Request]:
    return [
        request(name, prompts[index][:100], max_tokens=12, **params)
        for index, (name, params) in enumerate(KINDS.items(), start=1)
        if name in names
    ]


def drive(engine: Engine, requests: list[Request]) -> tuple[dict[str, Answer], set[str]]:
    """The answers of the requests, and which of them ended by a fault."""
    answers: dict[str, Answer] = {}
    faults: set[str] = set()
    for each in requests:
        try:
            engine.add_request(each)
        except RequestFaultError:
            faults.add(each.request_id)
    while engine.has_unfinished_requests():
        for output in engine.step():
            assert output.request_id not in faults, "nothing follows a fault"
            answer = answers.setdefault(output.request_id, Answer())
            answer.token_ids += output.token_ids
            answer.logprobs += output.logprobs or []
            answer.prompt_logprobs = output.prompt_logprobs or answer.prompt_logprobs
            answer.finish_reason, answer.sequences = output.finish_reason, output.sequences
            if output.refusal is not None:
                assert output.is_fault
                assert output.refusal.startswith("internal error")
                faults.add(output.request_id)
        engine.scheduler.check_integrity()
    assert engine.pages.num_held_pages == 0
    assert not engine._features.active
    return answers, faults


def finish(engine: Engine) -> None:
    while engine.has_unfinished_requests():
        engine.step()


def same_but(
    faults: set[str], found: dict[str, Answer], expected: dict[str, Answer], names: Collection[str] = KINDS
) -> None:
    for name in set(names) - faults:
        assert found[name].token_ids == expected[name].token_ids, name
        assert found[name].finish_reason == expected[name].finish_reason, name
        beams = [None if each.sequences is None else [one.token_ids for one in each.sequences]
                 for each in (found[name], expected[name])]  # fmt: skip
        assert beams[0] == beams[1], name
        assert len(found[name].logprobs) == len(expected[name].logprobs), name
        assert len(found[name].prompt_logprobs or ()) == len(expected[name].prompt_logprobs or ()), name


def nothing_is_left(engine: Engine, prompts: list[list[int]], undisturbed: dict[str, Answer], names: set[str]) -> None:
    """Requests of these kinds have their tokens when they are made once more, alongside a plain one."""
    names = {"greedy", *names}
    answers, faults = drive(engine, every_kind(prompts, names))
    assert not faults, "something was left behind"
    same_but(set(), answers, undisturbed, names)


def failing(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, fails: Callable[..., bool], *, behind: bool = False
) -> list[int]:
    """Let a method raise when `fails` says so, before it has done its work or `after` it; how often it did."""
    original, times = getattr(owner, name), [0]

    def method(*args: Any, **kwargs: Any) -> Any:
        wanted = fails(*args, **kwargs)
        result = original(*args, **kwargs) if behind or not wanted else None
        if wanted:
            times[0] += 1
            raise IndexError(f"injected into {name}")
        return result

    monkeypatch.setattr(owner, name, method)
    return times


def nth(count: int) -> Callable[..., bool]:
    calls = iter(range(1, 10**9))
    return lambda *args, **kwargs: next(calls) == count


MOMENTS = ((1, False), (6, True), (1, True), (6, False))
"""At its first or sixth call, before or after its work. Three in a row have all of these."""


def failures() -> Iterator[Any]:
    """Each hook of each feature at one of the moments: each feature at all of them, each hook at three."""
    for (own, feature), (place, hook) in product(enumerate(OF), enumerate(HOOKS)):
        first = MOMENTS[(own + place) % len(MOMENTS)]
        for count, behind in thinned([first], (moment for moment in MOMENTS if moment != first)):
            name = f"{feature.__name__}-{hook}-{count}-{'after' if behind else 'before'} its work"
            yield pytest.param(feature, hook, count, behind, id=name)


@pytest.mark.parametrize(("feature", "hook", "count", "behind"), list(failures()))
def test_a_hook_that_fails_ends_requests_of_its_feature_only(
    engine: Engine,
    prompts: list[list[int]],
    undisturbed: dict[str, Answer],
    monkeypatch: pytest.MonkeyPatch,
    feature: type[StepFeature],
    hook: str,
    count: int,
    behind: bool,
) -> None:
    with monkeypatch.context() as patch:
        times = failing(patch, feature, hook, nth(count), behind=behind)
        answers, faults = drive(engine, every_kind(prompts))
    assert faults <= OF[feature]
    assert times[0] == 1 or count > 1, "the hook was never called"
    same_but(faults, answers, undisturbed)
    nothing_is_left(engine, prompts, undisturbed, OF[feature])


def test_a_hook_that_fails_when_it_has_ended_a_request(
    engine: Engine, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    original, ended = ConstrainedDecoding.on_accept, []

    def on_accept(*arguments: Any) -> list[Request]:
        found = original(*arguments)
        ended.extend(found)
        assert not found, "injected"
        return found

    with monkeypatch.context() as patch:
        patch.setattr(ConstrainedDecoding, "on_accept", on_accept)
        grammar: dict[str, Any] = {"structured_outputs": {"regex": "[a-z]{3}"}}
        _, faults = drive(engine, [request("short", prompts[1], max_tokens=30, ignore_eos=True, **grammar)])
    assert [each.request_id for each in ended] == ["short"]
    assert faults == {"short"}


def test_a_hook_that_fails_in_a_step_without_its_requests_is_logged(
    engine: Engine, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        # One waits for its grammar while the other runs.
        patch.setattr(Constraints, "ready", lambda self: [])
        patch.setattr(ConstrainedDecoding, "on_scheduled", lambda *arguments: 1 // 0)
        engine.add_request(request("held", prompts[1], structured_outputs={"regex": "[a-z]{3}"}))
        engine.add_request(request("runs", prompts[2], temperature=0, max_tokens=3, ignore_eos=True))
        while "runs" in engine.unfinished_ids():
            assert not any(output.is_fault for output in engine.step())
    assert "ConstrainedDecoding failed in a step that has none of its requests" in caplog.text
    assert "ZeroDivisionError" in caplog.text
    engine.abort_request("held")
    finish(engine)


class PanicException(BaseException):
    """No `Exception`, and of no class that could be imported."""


@pytest.mark.parametrize("method", ["take", "forced", "fill"])
def test_a_library_that_panics_ends_one_request(
    engine: Engine,
    prompts: list[list[int]],
    undisturbed: dict[str, Answer],
    monkeypatch: pytest.MonkeyPatch,
    method: str,
) -> None:
    def panics(*arguments: object) -> None:
        raise PanicException("index out of bounds")

    wanted = {"fill": "budget"}.get(method, "forced tokens")
    asked = every_kind(prompts)
    with monkeypatch.context() as patch:
        begin = Constraints.start if wanted != "budget" else Constraints.begin

        def started(self: Constraints, asking: Request, *rest: Any) -> Any:
            result = begin(self, asking, *rest)
            if asking.request_id == wanted:
                assert asking.constraint is not None
                patch.setattr(asking.constraint, method, panics)
            return result

        patch.setattr(Constraints, begin.__name__, started)
        answers, faults = drive(engine, asked)
    assert faults == {wanted}
    same_but(faults, answers, undisturbed)


def of_request(name: str) -> Callable[..., bool]:
    """Whether a call is about this request, a group or a constraint of it."""

    def is_of(value: Any) -> bool:
        if isinstance(value, Request):
            return value.request_id == name
        if isinstance(value, BeamGroup):
            return value.leader.request_id == name
        if isinstance(value, (list, tuple)):
            return any(is_of(each) for each in value)
        return False

    return lambda *args, **kwargs: any(is_of(value) for value in args)


WORK: list[tuple[Any, str, str]] = [
    (ConstrainedDecoding, "handles", "grammar"),
    (ConstrainedDecoding, "on_added", "grammar"),
    (ConstrainedDecoding, "_tail", "grammar with logprobs"),
    (Constraints, "begin", "budget"),
    (Constraints, "start", "grammar"),
    (Constraints, "fill", "grammar"),
    (Constraints, "fill", "both"),
    (Constraints, "forget", "grammar"),
    (BeamSearches, "prepare", "beams"),
    (BeamGroup, "take", "beams"),
    (BeamGroup, "hypotheses", "more beams"),
    (PromptLogprobs, "on_added", "prompt"),
    (Processing, "begin", "processed"),
    (logprobs, "_token_logprobs", "prompt, seeded"),
]


@pytest.mark.parametrize(("owner", "name", "target"), WORK, ids=lambda value: getattr(value, "__name__", value))
def test_work_for_one_request_that_fails_ends_that_one(
    engine: Engine,
    prompts: list[list[int]],
    undisturbed: dict[str, Answer],
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    target: str,
) -> None:
    fails = of_request(target)
    if name == "_token_logprobs":
        # Of the tokens of this request alone, as nobody else has as many alternatives.
        fails = lambda token_id, values, row, asked: asked == 0  # noqa: E731
    with monkeypatch.context() as patch:
        times = failing(patch, owner, name, fails)
        answers, faults = drive(engine, every_kind(prompts))
    assert times[0]
    # What is only forgotten has ended already.
    assert faults == (set() if name == "forget" else {target})
    same_but(faults, answers, undisturbed)
    nothing_is_left(engine, prompts, undisturbed, {target})


def test_log_probabilities_of_an_output(
    engine: Engine, prompts: list[list[int]], undisturbed: dict[str, Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        failing(patch, step_outputs, "output_logprobs", of_request("logprobs"))
        answers, faults = drive(engine, every_kind(prompts))
    assert faults == {"logprobs"}
    same_but(faults, answers, undisturbed)


def test_a_fault_with_the_last_token_is_told(
    engine: Engine, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request has ended for the scheduler when its output is made."""
    with monkeypatch.context() as patch:
        failing(patch, step_outputs, "output_logprobs", lambda request, *rest: request.output_token_ids != [])
        answers, faults = drive(engine, [request("x", prompts[1], max_tokens=3, logprobs=0, ignore_eos=True)])
    assert faults == {"x"}
    assert answers["x"].finish_reason == "abort"


def test_a_refused_request_leaves_nothing_for_the_next(
    engine: Engine, prompts: list[list[int]], undisturbed: dict[str, Answer], tokenizer: Any
) -> None:
    """Its forced tokens are forbidden by its own parameters: it ends between two hooks of one step."""
    (a,) = tokenizer("a", add_special_tokens=False)["input_ids"][-1:]
    greedy = request("greedy", prompts[1][:100], temperature=0, max_tokens=12)
    engine.add_request(greedy)
    engine.add_request(
        request("wrong", prompts[2], allowed_token_ids=[a], structured_outputs={"regex": "aaa[0-9]"}, max_tokens=20)
    )
    told: dict[str, str | None] = {}
    tokens: list[int] = []
    while engine.has_unfinished_requests():
        for output in engine.step():
            told[output.request_id] = output.refusal
            tokens += output.token_ids if output.request_id == "greedy" else []
        if told.get("wrong") and "next" not in told:
            told["next"] = None
            engine.add_request(request("next", prompts[3], structured_outputs={"regex": "[a-z]{5}"}, max_tokens=9))
    assert (told["wrong"] or "").startswith("structured_outputs: no token can follow")
    assert told["greedy"] is None
    assert tokens == undisturbed["greedy"].token_ids


def test_what_fails_on_the_device_is_no_request_s_fault(
    engine: Engine, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = make_engine(max_model_len=64, max_num_seqs=2, max_num_batched_tokens=32)
    try:
        with monkeypatch.context() as patch:
            failing(patch, type(broken.runner), "choose", nth(1))
            broken.add_request(request("x", [5, 6], structured_outputs={"regex": "[a-z]{9}"}, max_tokens=9))
            with pytest.raises(EngineError, match="sampling constrained tokens failed: IndexError"):
                finish(broken)
    finally:
        broken.close()


def test_broken_invariants_end_the_engine(
    engine: Engine, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = make_engine(max_model_len=64, max_num_seqs=2, max_num_batched_tokens=32)
    try:

        def take(*args: object) -> None:
            broken.scheduler.table.num_computed[1] = 7
            raise KeyError("injected")

        with monkeypatch.context() as patch:
            patch.setattr(BeamGroup, "take", take)
            broken.add_request(request("x", [5, 6], beam_search=BeamOptions(width=1), max_tokens=9))
            with pytest.raises(EngineError, match="inconsistent after an internal error"):
                finish(broken)
    finally:
        broken.close()


def test_a_constraint_that_fails_at_a_token(
    engine: Engine, prompts: list[list[int]], undisturbed: dict[str, Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of seven constrained rows, the one that took this call ends."""
    for count in (1, 8):
        with monkeypatch.context() as patch:
            failing(patch, Constraint, "take", nth(count))
            answers, faults = drive(engine, every_kind(prompts))
        assert len(faults) == 1
        same_but(faults, answers, undisturbed)


def test_a_deferred_request_that_fails_does_not_lose_the_others(
    engine: Engine, prompts: list[list[int]], undisturbed: dict[str, Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.control.pause("keep")
    for each in every_kind(prompts):
        engine.add_request(each)
    with monkeypatch.context() as patch:
        failing(patch, ConstrainedDecoding, "handles", of_request("budget"))
        engine.control.resume()
    answers, faults = drive(engine, [])
    assert faults == {"budget"}
    same_but(faults, answers, undisturbed)
