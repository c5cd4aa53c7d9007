"""The head that ships for `demo`: found by name, exact, and mostly right."""

import pytest

from benchmarks.demo_head import prompts
from jaxllm.engine.features import speculation
from jaxllm.models.checkpoint.find_model import find_model
from jaxllm.requests.request import Request
from tests.e2e.driving import make_engine, request, run
from tests.e2e.test_speculation import all_of_them, tokens

SIZES = {"max_num_seqs": 4, "max_num_batched_tokens": 32, "max_model_len": 1024}


def test_the_head_that_ships_guesses_right_and_changes_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    given = prompts(["stories", "json", "lists"], 6)

    def asked() -> list[Request]:
        return [
            request(i, prompt.tolist(), temperature=i % 2, seed=i, max_tokens=64, stop_token_ids=[0, 2])
            for i, prompt in enumerate(given)
        ]

    plain = make_engine(**SIZES)
    wanted = tokens(run(plain, asked()))
    plain.close()
    monkeypatch.setattr(speculation, "choose_amounts", all_of_them)
    head = {"method": "eagle3", "model": "demo-eagle3", "num_speculative_tokens": 3}
    made = make_engine(**SIZES, speculative_config=head)
    try:
        assert tokens(run(made, asked())) == wanted
        drafts = made.stats().drafts
    finally:
        made.close()
    assert drafts.num_draft_tokens > 100
    # Every token of it that is drawn may be another than the likeliest.
    assert drafts.num_accepted_tokens > FLOOR * drafts.num_draft_tokens


FLOOR = 0.5
"""Less than the share that is right, see the card, because a guess after a wrong one is never right."""


def test_the_head_is_small() -> None:
    folder = find_model("demo-eagle3")
    assert (folder / "model.safetensors").stat().st_size <= 1_500_000
    assert {path.name for path in folder.iterdir()} == {"README.md", "config.json", "model.safetensors"}
