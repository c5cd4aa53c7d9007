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


def paths(tree: dict[str, Any]) -> dict[int, list[dict[str, Any]]]:
    """For each choice its tokens in the tree, from the prompt on."""
    found = {}
    for token in tree["tokens"]:
        if token["choice"] is not None:
            path = [token]
            while path[0]["parent"] is not None:
                path.insert(0, tree["tokens"][path[0]["parent"]])
            found[token["choice"]] = path
    return found


def test_the_tree_leads_to_the_choices(http: httpx.Client) -> None:
    body = {"prompt": ["Once upon a time", "The cat"], "max_tokens": 8, "n": 2, "best_of": 3, "logprobs": 0}
    asked = {**body, **BEAMS, "return_beam_tree": True, "return_token_ids": True}
    choices = http.post("/v1/completions", json=asked).json()["choices"]
    assert ["beam_tree" in choice for choice in choices] == [True, False, True, False]
    for first, second in (choices[:2], choices[2:]):
        tree = first["beam_tree"]
        assert tree["is_whole"]
        found = paths(tree)
        for number, choice in enumerate((first, second)):
            assert [token["id"] for token in found[number]] == choice["token_ids"]
            assert [token["logprob"] for token in found[number]] == choice["logprobs"]["token_logprobs"]
            assert found[number][-1]["total"] == pytest.approx(sum(choice["logprobs"]["token_logprobs"]), abs=1e-4)
            assert found[number][-1]["finish_reason"] == choice["finish_reason"]
        text = bytes(byte for token in found[0] for byte in token["bytes"]).decode(errors="replace")
        assert text.startswith(first["text"].rstrip("\N{REPLACEMENT CHARACTER}"))
        # A step has as many beams as were asked for.
        depths: list[int] = []
        for token in tree["tokens"]:
            depths.append(0 if token["parent"] is None else depths[token["parent"]] + 1)
        assert max(map(depths.count, range(7))) <= 3 + 1
    assert "beam_tree" not in http.post("/v1/completions", json={**body, **BEAMS}).json()["choices"][0]


def test_a_chat_has_its_tree(http: httpx.Client) -> None:
    message = {"role": "user", "content": "What is 2 plus 3?"}
    body = {"messages": [message], "n": 2, "max_tokens": 30, **BEAMS, "return_beam_tree": True}
    first, second = http.post("/v1/chat/completions", json=body).json()["choices"]
    assert "beam_tree" not in second
    best = paths(first["beam_tree"])[0]
    assert "".join(token["token"] for token in best).startswith(first["message"]["content"])
    assert best[-1]["score"] == pytest.approx(best[-1]["total"] / len(best))


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
        ({"return_beam_tree": True}, "return_beam_tree"),
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
