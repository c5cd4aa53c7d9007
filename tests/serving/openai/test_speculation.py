"""Speculative decoding in a real server: predictions, a request's own limit, metrics, and what is wrong."""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from jaxllm.serving.bench.drafts import read_draft_counters
from tests.serving.server_process import SMALL, ServerProcess, running

ASKED: Any = [{"role": "user", "content": "Tell me a story about a dog."}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    flags = (
        "--speculative-config.method",
        "ngram",
        "--spec-tokens",
        "5",
        "--per-request-spec-decode-metrics",
        "detailed",
    )
    with running(tmp_path_factory.mktemp("log") / "log", *SMALL, *flags) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def counted(server: ServerProcess, name: str) -> float:
    found = re.search(rf"^jaxllm:{name}_total{{.*}} (.*)$", httpx.get(f"{server.url}/metrics").text, re.MULTILINE)
    assert found
    return float(found[1])


def test_a_prediction_changes_no_text(server: ServerProcess, client: openai.OpenAI) -> None:
    def text(**more: Any) -> str:
        made: Any = client.chat.completions.create(
            model="demo",
            messages=ASKED,
            temperature=0,
            max_tokens=60,
            **more,
        )
        return str(made.choices[0].message.content)

    plain = text(extra_body={"speculative_tokens": 0})
    assert plain
    for prediction in (plain, [{"type": "text", "text": plain}], plain[: len(plain) // 2] + " " + plain, "😀" * 9):
        assert text(prediction={"type": "content", "content": prediction}) == plain


def asked(client: openai.OpenAI, **more: Any) -> Any:
    """A long answer whose text is known."""
    return client.chat.completions.create(model="demo", messages=ASKED, temperature=0, max_tokens=150, **more)


def test_drafts_are_made_and_a_response_tells_of_them(server: ServerProcess, client: openai.OpenAI) -> None:
    plain = asked(client, extra_body={"speculative_tokens": 0})
    assert plain.model_extra.get("metrics") is None, "there can be no drafts"
    prediction = {"type": "content", "content": plain.choices[0].message.content}
    # How many drafts are worth it depends on the machine, and is learnt; that none ever are would be a mistake.
    answer, found, drafts, accepted = plain, {}, 0, 0
    for _ in range(8):
        before = [counted(server, f"spec_decode_num_{kind}_tokens") for kind in ("draft", "accepted")]
        answer = asked(client, prediction=prediction)
        assert answer.choices[0].message.content == plain.choices[0].message.content
        found = answer.model_extra["metrics"]["speculative_decoding"]
        after = [counted(server, f"spec_decode_num_{kind}_tokens") for kind in ("draft", "accepted")]
        drafts, accepted = found["num_draft_tokens"], found["num_accepted_draft_tokens"]
        assert [after[0] - before[0], after[1] - before[1]] == [drafts, accepted]
        if drafts:
            break
    assert accepted > 0
    steps, histogram = found["num_spec_steps"], found["acceptance_histogram"]
    assert found["num_spec_tokens"] == 5
    assert found["mean_acceptance_length"] == pytest.approx(1 + accepted / steps)
    assert found["draft_acceptance_rate"] == pytest.approx(accepted / drafts)
    assert sum(histogram) == steps
    assert sum(number * count for number, count in enumerate(histogram)) == accepted
    by_length = found["acceptance_histogram_by_draft_length"]
    assert sum(int(length) * sum(counts) for length, counts in by_length.items()) == drafts
    assert "time_to_first_token_ms" not in answer.model_extra["metrics"]


def test_a_stream_tells_of_drafts_at_its_end(client: openai.OpenAI) -> None:
    made: Any = client.completions.create(
        model="demo", prompt="Once upon", max_tokens=30, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = list(made)
    assert last.model_extra["metrics"]["speculative_decoding"]["num_spec_tokens"] == 5
    assert not any("metrics" in (chunk.model_extra or {}) for chunk in chunks)


@pytest.mark.parametrize(
    "prediction", [{"type": "text", "content": "x"}, {"type": "content"}, {"type": "content", "content": 5}, "x"]
)
def test_a_wrong_prediction_is_an_error(client: openai.OpenAI, prediction: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="prediction"):
        client.chat.completions.create(
            model="demo",
            messages=ASKED,
            prediction=prediction,
        )
    with pytest.raises(openai.BadRequestError, match="speculative_tokens"):
        client.chat.completions.create(
            model="demo",
            messages=ASKED,
            extra_body={"speculative_tokens": -1},
        )


def test_counters_that_a_load_test_reads(server: ServerProcess, client: openai.OpenAI) -> None:
    client.completions.create(model="demo", prompt="one two one two one two", max_tokens=20, temperature=0)
    found = read_draft_counters(server.url, {}, None)
    names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
    assert found["num_drafts"] > 0
    assert {name: found.pop(name) for name in names} == {name: counted(server, f"spec_decode_{name}") for name in names}
    assert found.keys() == {f"num_accepted_tokens_per_pos {place}" for place in range(5)}
    assert sum(found.values()) == counted(server, "spec_decode_num_accepted_tokens")
