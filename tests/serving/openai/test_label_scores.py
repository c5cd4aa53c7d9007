"""`/generative_scoring`: the probabilities of labels are those of completions of the same prompts."""

import math
from typing import Any

import httpx
import pytest

from tests.serving.openai.conftest import MAX_MODEL_LEN, MAX_SEQUENCES

PATH = "/generative_scoring"
LABELS = [300, 281, 305]
QUERY, ITEMS = "Is this about a cat? ", ["The cat sat. ", "A dog ran."]


def tokens(http: httpx.Client, text: str, *, special: bool) -> list[int]:
    body = {"prompt": text, "add_special_tokens": special}
    found: list[int] = http.post("/tokenize", json=body).json()["tokens"]
    return found


def logprobs(http: httpx.Client, prompt: list[int]) -> list[float]:
    body = {
        "prompt": prompt, "max_tokens": 1, "temperature": 0, "logprobs": 0, "logprob_token_ids": LABELS,
        "return_tokens_as_token_ids": True,
    }  # fmt: skip
    (top,) = http.post("/v1/completions", json=body).json()["choices"][0]["logprobs"]["top_logprobs"]
    return [top[f"token_id:{label}"] for label in LABELS]


@pytest.mark.parametrize("item_first", [False, True])
@pytest.mark.parametrize("as_ids", [False, True])
def test_scores_are_probabilities_of_completions(http: httpx.Client, item_first: bool, as_ids: bool) -> None:
    query = tokens(http, QUERY, special=True)
    items = [tokens(http, item, special=False) for item in ITEMS]
    asked: dict[str, Any] = {"query": query if as_ids else QUERY, "items": items if as_ids else ITEMS}
    body = {**asked, "label_token_ids": LABELS, "item_first": item_first}
    answer = http.post(PATH, json=body).json()
    free = http.post(PATH, json={**body, "apply_softmax": False}).json()
    for index, item in enumerate(items):
        found = logprobs(http, item + query if item_first else query + item)
        shares = [math.exp(each) for each in found]
        assert answer["data"][index] == {
            "index": index, "object": "score", "score": pytest.approx(shares[0] / sum(shares), abs=1e-4)
        }  # fmt: skip
        assert free["data"][index]["score"] == pytest.approx(shares[0], rel=1e-3)
    assert answer["usage"]["prompt_tokens"] == sum(len(query) + len(item) for item in items)
    assert answer["usage"]["completion_tokens"] == 2


def test_the_only_label_has_all(http: httpx.Client) -> None:
    body = {"query": QUERY, "items": ITEMS, "label_token_ids": [300, 300]}
    assert [each["score"] for each in http.post(PATH, json=body).json()["data"]] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"items": []}, "items"),
        ({"items": ["a", [1]]}, "items"),
        ({"items": ["a"] * (MAX_SEQUENCES + 1)}, "items"),
        ({"items": [[10**6]]}, "items"),
        ({"items": [[5] * MAX_MODEL_LEN]}, "items"),
        ({"items": ["a" * 200_000]}, "items"),
        ({"query": None}, "query"),
        ({"query": {"a": 1}}, "query"),
        ({"label_token_ids": []}, "label_token_ids"),
        ({"label_token_ids": [10**6]}, "label_token_ids"),
        ({"label_token_ids": [2**40]}, "label_token_ids"),
        ({"label_token_ids": list(range(300, 429))}, "label_token_ids"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"priority": 2**64}, "priority"),
        ({"label_token_id": [1]}, "label_token_id"),
    ],
)
def test_errors(http: httpx.Client, change: dict[str, Any], field: str) -> None:
    response = http.post(PATH, json={"query": QUERY, "items": ITEMS, "label_token_ids": LABELS, **change})
    assert response.status_code == 400, response.text
    assert (response.json()["error"]["param"] or "").startswith(field), response.text
