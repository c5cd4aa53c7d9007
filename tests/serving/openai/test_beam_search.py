"""`use_beam_search` over HTTP, with OpenAI's own client."""

from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

BEAMS = {"use_beam_search": True}


def test_completions_are_the_best_beams(client: OpenAI) -> None:
    def ask(**more: Any) -> Any:
        return client.completions.create(
            model="demo", prompt=["Once upon a time", "The cat"], max_tokens=10, logprobs=2, **more
        )

    answer = ask(n=2, best_of=4, extra_body={**BEAMS, "return_token_ids": True, "ignore_eos": True})
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    for choice in answer.choices:
        assert choice.finish_reason == "length"
        assert len(choice.logprobs.token_logprobs) == len(choice.token_ids) == 10
    totals = [sum(choice.logprobs.token_logprobs) for choice in answer.choices]
    assert totals[0] >= totals[1]
    assert answer.choices[0].text != answer.choices[1].text
    assert answer.usage.completion_tokens == 40
    # Likelier than what is likeliest token by token, or the same.
    greedy = ask(temperature=0, extra_body={"ignore_eos": True})
    assert totals[0] >= sum(greedy.choices[0].logprobs.token_logprobs) - 1e-3


def test_chats_are_searched_too(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": "What is 2 plus 3?"}],
        n=2,
        max_completion_tokens=40,
        extra_body={**BEAMS, "length_penalty": 0.0, "early_stopping": "never"},
    )
    first, second = answer.choices
    assert (first.index, second.index) == (0, 1)
    assert first.finish_reason == "stop"
    assert first.message.content
    assert first.message.content != second.message.content
    assert "<|" not in first.message.content


@pytest.mark.parametrize(
    ("fields", "parameter"),
    [
        ({**BEAMS, "stream": True}, "stream"),
        ({**BEAMS, "n": 9}, "n"),
        ({**BEAMS, "n": 2, "best_of": 9}, "best_of"),
        ({**BEAMS, "top_p": 0.5}, "top_p"),
        ({**BEAMS, "stop": "."}, "stop"),
        ({**BEAMS, "frequency_penalty": 1}, "frequency_penalty"),
        ({**BEAMS, "echo": True, "logprobs": 1}, "echo"),
        ({**BEAMS, "structured_outputs": {"regex": "a+"}}, "use_beam_search"),
        ({**BEAMS, "length_penalty": "much"}, "length_penalty"),
        ({**BEAMS, "early_stopping": "sometimes"}, "early_stopping"),
        ({"length_penalty": 2.0}, "length_penalty"),
        ({"early_stopping": True}, "early_stopping"),
    ],
)
def test_what_makes_no_sense_is_refused(http: httpx.Client, fields: dict[str, Any], parameter: str) -> None:
    answer = http.post("/v1/completions", json={"prompt": "x", "max_tokens": 5, **fields})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == parameter


def test_without_beams_their_fields_may_have_their_defaults(client: OpenAI) -> None:
    defaults = {"use_beam_search": False, "length_penalty": 1.0, "early_stopping": False}
    answer = client.completions.create(model="demo", prompt="x", max_tokens=2, extra_body=defaults)
    assert len(answer.choices) == 1
    with pytest.raises(openai.BadRequestError, match="max_num_seqs"):
        client.completions.create(model="demo", prompt="x", n=9, extra_body=BEAMS)
