"""Drafts change no token on several devices, whoever makes them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxllm.engine.features import speculation
from tests.e2e.driving import Answer, make_engine, run
from tests.e2e.test_speculation import KINDS, all_of_them, requests, script, tokens
from tests.models.drafters.checkpoints import save_eagle3, save_mlp_speculator

WAYS: dict[str, dict[str, Any]] = {"model": {"tensor_parallel_size": 2}, "data": {"mesh": "data=2"}}
FEW: dict[str, Any] = {"max_num_seqs": 8, "max_num_batched_tokens": 64}
"""Steps of few sizes to compile."""
REQUESTS = range(2 * len(KINDS))
"""Two of each kind."""
exhaustive = pytest.mark.exhaustive


@pytest.fixture(scope="module")
def wanted(request: pytest.FixtureRequest, prompts: list[list[int]]) -> Iterator[dict[str, Answer]]:
    """The answers without drafts."""
    engine = make_engine(**FEW, **WAYS[request.param])
    yield run(engine, requests(prompts, REQUESTS))
    engine.close()


# `tests/e2e/test_device_drafts.py` and `test_speculation.py` have the other drafters, on one device.
@pytest.mark.parametrize(
    ("wanted", "method"),
    [
        ("model", "draft_model"),
        pytest.param("model", "eagle3", marks=exhaustive),
        pytest.param("model", "ngram", marks=exhaustive),
        pytest.param("model", "mlp_speculator", marks=exhaustive),
        pytest.param("data", "eagle3", marks=exhaustive),
        pytest.param("data", "mlp_speculator", marks=exhaustive),
        pytest.param("data", "draft_model", marks=exhaustive),
        pytest.param("data", "ngram", marks=exhaustive),
    ],
    indirect=["wanted"],
)
def test_the_same_tokens(
    wanted: dict[str, Answer], method: str, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    drafter: dict[str, Any] = {"method": method, "num_speculative_tokens": 3}
    if method == "ngram":
        drafter["num_speculative_tokens"] = 5
    else:
        heads = {"eagle3": save_eagle3, "mlp_speculator": save_mlp_speculator}
        drafter["model"] = "demo" if method == "draft_model" else str(heads[method](tmp_path))
    way = WAYS[request.node.callspec.params["wanted"]]
    engine = make_engine(**FEW, **way, speculative_config=drafter)
    try:
        if method == "ngram":
            script(engine, wanted, "mixed", monkeypatch)
        monkeypatch.setattr(speculation, "choose_amounts", all_of_them)
        assert tokens(run(engine, requests(prompts, REQUESTS))) == tokens(wanted)
        drafts = engine.stats().drafts
        assert drafts.num_draft_tokens > 50
        assert method != "ngram" or drafts.num_accepted_tokens > 100
    finally:
        engine.close()
