"""Drafts that the devices make: they change no token, and are those of the model that makes them."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxllm.engine.engine import Engine
from jaxllm.engine.features import speculation
from jaxllm.models.checkpoint.find_model import find_model
from jaxllm.requests.request import Request
from jaxllm.speculation import device_drafts
from tests.e2e.driving import Answer, make_engine, request, run
from tests.e2e.test_drawn_drafts import MOST_DRAFTS, Drawing, check_same
from tests.e2e.test_drawn_drafts import said as said_of
from tests.e2e.test_speculation import NUM_REQUESTS, all_of_them, answers, requests, said, tokens  # noqa: F401
from tests.models.drafters.checkpoints import save_eagle3, save_mlp_speculator
from tests.thinned import EVERY_CASE

HEADS: dict[str, Callable[[Path], Path]] = {
    "eagle3": save_eagle3,
    "mlp_speculator": partial(save_mlp_speculator, stages=MOST_DRAFTS),
}
GREEDY = {"temperature": 0, "ignore_eos": True}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "drafting" in metafunc.fixturenames:
        # `tests/models/drafters/test_mlp_speculator.py` has an engine with the other one.
        others = [pytest.param(name, marks=[pytest.mark.exhaustive] * (name != "eagle3")) for name in HEADS]
        metafunc.parametrize("drafting", ["draft_model", *others], indirect=True)


@pytest.fixture(scope="module")
def drafting(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine like `engine`: `demo` drafts for itself, or a head with random weights does."""
    model = "demo"
    if request.param in HEADS:
        model = str(HEADS[request.param](tmp_path_factory.mktemp(request.param)))
    drafter = {"method": request.param, "model": model, "num_speculative_tokens": MOST_DRAFTS}
    # One compiles all that its features could need, the others what they need.
    made = make_engine(max_num_seqs=64, speculative_config=drafter, enforce_eager=request.param in HEADS)
    yield made
    made.close()


def test_all_that_requests_get_is_the_same(
    drafting: Engine,
    answers: dict[str, Answer],  # noqa: F811
    prompts: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(speculation, "choose_amounts", all_of_them)
    before = drafting.stats().drafts
    drafting.reset_prefix_cache()
    assert said(run(drafting, requests(prompts))) == said(answers)
    assert drafting.stats().drafts.since(before).num_draft_tokens > 300
    drafting.reset_prefix_cache()
    assert said(run(drafting, requests(prompts, [4]))) == said({"4": answers["4"]})


def test_requests_with_every_parameter_drawn(
    drafting: Engine,
    engine: Engine,
    prompts: list[list[int]],
    tokenizer: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(speculation, "choose_amounts", all_of_them)
    drawing = Drawing(prompts, tokenizer("a", add_special_tokens=False)["input_ids"])
    rng = np.random.default_rng(7)
    before = drafting.stats().drafts
    for _ in range(100 if EVERY_CASE else 4):
        numbers = rng.integers(2**32, size=rng.integers(1, 9)).tolist()
        asked = [(number, int(rng.integers(MOST_DRAFTS + 1)) or None) for number in numbers]
        # Requests join a batch when their grammar is compiled, and last bits may follow the batch, with drafts and
        # without. What drafts change, they change again.
        for is_last in (False, True):
            try:
                check_same(said_of(drafting, drawing.requests(asked)), said_of(engine, drawing.requests(asked)))
                break
            except AssertionError:
                if is_last:
                    raise
    assert drafting.stats().drafts.since(before).num_draft_tokens > 30


def test_a_model_accepts_all_that_it_drafts_for_itself(
    prompts: list[list[int]], engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speculation, "choose_amounts", all_of_them)
    monkeypatch.setattr(device_drafts, "FIRST_COMPARISON", 10**6)  # it reads every token
    engine.reset_prefix_cache()
    asked = [request(i, prompts[i], max_tokens=40, **GREEDY) for i in range(6)]
    wanted = tokens(run(engine, asked))
    made = make_engine(
        max_num_seqs=8, max_num_batched_tokens=32, block_size=4,
        speculative_config={"model": "demo", "num_speculative_tokens": 3},
    )  # fmt: skip
    try:
        asked = [request(i, prompts[i], max_tokens=40, **GREEDY) for i in range(6)]
        assert tokens(run(made, asked)) == wanted
        drafts = made.stats().drafts
        assert drafts.num_draft_tokens > 80
        # Prompts come in chunks and tokens cross pages; where logits are as good as equal, the two may differ.
        assert drafts.num_accepted_tokens >= 0.97 * drafts.num_draft_tokens
        # The second time all prompts are found in the prefix cache, and so is what the drafter kept of them.
        asked = [request(i, prompts[i], max_tokens=40, **GREEDY) for i in range(6)]
        assert tokens(run(made, asked)) == wanted
        again = made.stats().drafts.since(drafts)
        assert again.num_accepted_tokens >= 0.97 * again.num_draft_tokens
    finally:
        made.close()


def test_with_preemption_and_few_pages(
    engine: Engine, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked() -> list[Request]:
        return [request(i, prompts[i], max_tokens=70, temperature=i % 2, seed=i, ignore_eos=True) for i in range(8)]

    monkeypatch.setattr(speculation, "choose_amounts", all_of_them)
    made = make_engine(
        max_model_len=512, num_gpu_blocks_override=130, max_num_batched_tokens=32, max_num_seqs=8, block_size=4,
        speculative_config={"model": "demo", "num_speculative_tokens": 6},
    )  # fmt: skip
    try:
        assert tokens(run(made, asked())) == tokens(run(engine, asked()))
        assert made.scheduler.num_preemptions > 1
        assert made.stats().drafts.num_accepted_tokens > 100
    finally:
        made.close()


def test_drafts_that_are_never_right_are_hardly_made_any_more(
    drafting: Engine, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    assert drafting._speculation is not None
    taken = drafting._speculation._on_device
    assert taken is not None

    def take(table: Any, slots: Any, places: Any, drafts: Any) -> None:
        steps.append(1)
        type(taken).take(taken, table, slots, places, drafts)

    followed: list[bool] = []
    plain: list[bool] = []
    dispatch = drafting.runner.dispatch

    def noting(plan: Any, *args: Any, **options: Any) -> Any:
        step = dispatch(plan, *args, **options)
        followed.append(plan.is_followed)
        plain.append(step.is_plain)
        return step

    monkeypatch.setattr(drafting.runner, "dispatch", noting)
    rates = drafting._speculation._account.rates
    monkeypatch.setattr(rates, "of", lambda slots, most: np.zeros((len(slots), most)))
    taken.take = take  # type: ignore[method-assign]
    try:
        wanted = tokens(run(drafting, [request(i, prompts[i], max_tokens=200, **GREEDY) for i in range(4)]))
        assert len(steps) < 15
        assert 10 < sum(followed) < 50, "it does not even read the text any more"
        assert not any(followed[50:])
        assert plain == [not each for each in followed], "nor does it cost anything while it rests"
    finally:
        del taken.take
    # After a rest, drafts are tried again with the next request.
    for _ in range(8):
        followed.clear()
        assert tokens(run(drafting, [request(0, prompts[0], max_tokens=40, **GREEDY)]))["0"] == wanted["0"][:40]
        if all(followed[:10]):
            break
    else:
        pytest.fail("it has never read the text of a request again")


def test_predictions_come_before_guesses_that_the_host_has_not_seen(
    drafting: Engine, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speculation, "choose_amounts", all_of_them)
    asked = {"max_tokens": 40, "temperature": 1.0, "seed": 7, "ignore_eos": True}
    wanted = tokens(run(drafting, [request(0, prompts[0], **asked, speculative_tokens=0)]))
    before = drafting.stats().drafts
    predicted = np.array(wanted["0"], np.int32).tobytes()
    assert tokens(run(drafting, [request(0, prompts[0], **asked, predicted_token_ids=predicted)])) == wanted
    drafts = drafting.stats().drafts.since(before)
    assert drafts.num_accepted_tokens == drafts.num_draft_tokens > 28


def test_a_step_that_makes_drafts_for_nobody_holds_nobody_up(drafting: Engine, prompts: list[list[int]]) -> None:
    """A request ends with a token that arrives while a step makes drafts for it; the next request must not wait."""
    for index in range(12):
        drafting.add_request(request(index, prompts[index], temperature=0, max_tokens=40, stop_token_ids=[2, 203, 18]))
        steps = 0
        while drafting.has_unfinished_requests():
            drafting.step()
            steps += 1
            assert steps < 200, "no step is scheduled any more"


def test_a_draft_model_whose_embedding_has_more_rows(
    engine: Engine, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = find_model("demo")
    values = json.loads((source / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, "vocab_size": values["vocab_size"] + 8}))
    tensors = load_file(source / "model.safetensors")
    # Rows that no token has, the likeliest wherever they count.
    tensors["model.embed_tokens.weight"] = np.concatenate(
        [tensors["model.embed_tokens.weight"], 9 * tensors["model.embed_tokens.weight"][:8]]
    )
    save_file(tensors, tmp_path / "model.safetensors")
    monkeypatch.setattr(speculation, "choose_amounts", all_of_them)
    made = make_engine(
        max_num_seqs=8, max_num_batched_tokens=32,
        speculative_config={"model": str(tmp_path), "num_speculative_tokens": 2},
    )  # fmt: skip
    try:
        asked = {"max_tokens": 12, **GREEDY}
        found = run(made, [request(0, prompts[1], **asked)])
        assert tokens(found) == tokens(run(engine, [request(0, prompts[1], **asked)]))
        assert made.stats().drafts.num_draft_tokens > 5
    finally:
        made.close()
