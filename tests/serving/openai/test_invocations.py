"""`/invocations` of SageMaker's containers goes where the body belongs."""

from typing import Any

import httpx
import pytest

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 4}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Add 12 and 30."}], **GREEDY}),
        ("/v1/completions", {"prompt": "Once upon a time", **GREEDY}),
    ],
)
def test_it_answers_as_the_route_of_the_body(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    answer, wanted = (http.post(where, json=body).json() for where in ("/invocations", path))
    assert (answer["object"], answer["choices"]) == (wanted["object"], wanted["choices"])
    with http.stream("POST", "/invocations", json={**body, "stream": True}) as response:
        assert list(response.iter_lines())[-2] == "data: [DONE]"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"{}", "one of messages, prompt"), (b'{"input": "x"}', "one of"), (b"", "empty"), (b"{", "JSON"),
        (b"[]", "object"), (b'{"prompt": "\xff"}', "UTF-8"), (b'{"prompt": ' + b"[" * 9999, "nested"),
        (b'{"prompt": "x", "max_tokens": -1}', "max_tokens"),
    ],
)  # fmt: skip
def test_errors_are_those_of_the_route(http: httpx.Client, text: bytes, says: str) -> None:
    response = http.post("/invocations", content=text, headers={"Content-Type": "application/json"})
    assert response.status_code == 400, response.text
    assert says in response.json()["error"]["message"]


def test_it_needs_a_key(http: httpx.Client) -> None:
    wrong = {"Authorization": "Bearer wrong"}
    assert http.post("/invocations", json={"prompt": "x"}, headers=wrong).status_code == 401
