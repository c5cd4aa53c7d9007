"""However long a value is that a client sends: messages repeat little of it, wherever it stands."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from jaxllm.errors import MOST_QUOTED, quoted, shortened
from tests.serving.schema_sweep import Document, Place

LENGTH = 20_000
PATTERNS = ("x", "ab ", 'ä\n"', '{"type": "')
"""Words without end, words, what JSON escapes, and something like JSON."""
MOST_MESSAGE = 1000
PATHS = (
    "/v1/models/{}",
    "/v1/responses/{}",
    "/v1/responses/{}/cancel",
    "/v1/files/{}/content",
    "/v1/batches/{}",
    "/{}",
)
HEADERS = ("X-data-parallel-rank", "Content-Type", "Authorization", "x-api-key", "X-Request-Id", "anthropic-version")


def value(pattern: str, length: int = LENGTH) -> str:
    return (pattern * (length // len(pattern) + 1))[:length]


def problem(sent: str, response: httpx.Response, pattern: str) -> str | None:
    """The fault of the answer, if there is one."""
    if response.status_code < 400:
        return None
    error = response.json()["error"]
    message, parameter = error["message"], str(error.get("param") or "")
    repeats = any(value(pattern, MOST_QUOTED + 1) in text for text in (message, parameter))
    if response.status_code < 500 and len(message) <= MOST_MESSAGE and not repeats:
        return None
    return f"{sent}: {response.status_code}, {len(message)} characters: {message[:300]}"


def in_bodies(document: Document, *, everything: bool) -> Iterator[tuple[Place, str, str]]:
    """Places, the pattern of what stands there, and what does: a text, or an object with such a name."""
    for place in document.places("string", "object"):
        kinds = {choice.get("type") for choice in document.choices(place.schema)}
        for index, pattern in enumerate(PATTERNS):
            if not everything and (
                index == 1 or (index and place.route not in ("/v1/chat/completions", "/v1/responses"))
            ):
                continue
            text = value(pattern)
            if "string" in kinds or everything:
                yield place, pattern, json.dumps(text)
            if "object" in kinds and place.body is not None:
                yield place, pattern, json.dumps({text: 1})


def send(http: httpx.Client, place: Place, literal: str) -> httpx.Response:
    if place.body is None:
        return http.request(place.method, place.route, params={str(place.path[0]): json.loads(literal)[:6000]})
    headers = {"Content-Type": "application/json"}
    return http.request(place.method, place.route, content=place.content(literal), headers=headers)


def sweep(http: httpx.Client, *, everything: bool) -> int:
    document = Document(http.get("/openapi.json").json())
    tried = list(in_bodies(document, everything=everything))
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda case: problem(str(case[0]), send(http, case[0], case[2]), case[1]), tried))
    wrong = [each for each in answers if each]
    assert not wrong, "\n".join(wrong[:20])
    return len(tried)


def test_no_message_repeats_a_long_value_of_a_body(http: httpx.Client) -> None:
    assert sweep(http, everything=False) > 500


@pytest.mark.exhaustive
def test_no_message_repeats_a_long_value_anywhere(http: httpx.Client) -> None:
    assert sweep(http, everything=True) > 3000


@pytest.mark.parametrize("pattern", ["x", "a b "])
def test_no_message_repeats_a_path_or_a_header(http: httpx.Client, pattern: str) -> None:
    long = value(pattern)
    for path in PATHS:
        for method in ("GET", "POST", "DELETE"):
            answer = http.request(method, path.format(long.replace(" ", "%20")))
            assert problem(f"{method} {path}", answer, pattern) is None
    for name in HEADERS:
        # A key is needed here.
        answer = http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}, headers={name: long.strip()})
        assert problem(name, answer, pattern) is None


@pytest.mark.parametrize(
    "body",
    [
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": {value("x"): 1}}}}]},
        {"tools": [{"type": "function", "function": {"name": value("x")}}]},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": value("a b ")}}}]},
        {"tool_choice": {"type": "function", "function": {"name": value("x")}}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": value("x")}}}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"$ref": value("x")}}}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"pattern": value("(")}}}},
        {"structured_outputs": {"grammar": value("a b ")}},
        {"structured_outputs": {"grammar": f"root ::= {value('x')}"}},
        {"structured_outputs": {"json": {"type": "object", value("x"): {"type": 1}}}},
        {"messages": [{"role": value("x"), "content": "a"}]},
        {"messages": [{"role": "user", "content": [{"type": value("a b "), "text": "a"}]}]},
        {"logit_bias": {value("x"): 1}},
        {"logit_bias": {"9" * 400: 1}},
        {"model": value("a b ")},
        {value("x"): 1},
        {"max_tokens": [value("a b ")] * 50},
    ],
)
def test_no_message_repeats_a_value_of_what_is_free(http: httpx.Client, body: dict[str, object]) -> None:
    answer = http.post(
        "/v1/chat/completions", json={"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, **body}
    )
    for pattern in ("x", "a b ", "(", "9"):
        assert problem(json.dumps(body)[:60], answer, pattern) is None


@pytest.mark.parametrize(
    "given", ["x" * 500, ["x" * 500] * 50, {"a" * 500: 1}, b"y" * 500, [[[["z" * 300]]]], {1: {2: "b" * 400}}]
)
def test_values_are_quoted_shortly(given: object) -> None:
    shown = quoted(given)
    assert len(shown) <= MOST_QUOTED
    assert "..." in shown
    # Python refuses to write such a number.
    assert quoted(10**5000) == "a number of 16610 bits"


def test_short_values_are_quoted_whole() -> None:
    assert quoted("it's") == '"it\'s"'
    assert quoted([1, 2.5, None]) == "[1, 2.5, None]"
    assert quoted("a" * (MOST_QUOTED - 2)) == repr("a" * (MOST_QUOTED - 2))
    assert shortened("a" * MOST_QUOTED) == "a" * MOST_QUOTED
