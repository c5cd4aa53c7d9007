"""The Messages API, by Anthropic's own client."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import anthropic
import httpx
import pytest
import pytest_asyncio
from anthropic import Anthropic, AsyncAnthropic
from anthropic.types import Message, RawMessageStreamEvent
from openai import OpenAI
from pydantic import TypeAdapter

from tests.serving.openai.conftest import KEY, MAX_MODEL_LEN, MAX_SEQUENCES
from tests.serving.server_process import ServerProcess

ASK: Any = [{"role": "user", "content": "What is 2 + 3?"}]
GREEDY: dict[str, Any] = {"model": "demo", "max_tokens": 20, "extra_body": {"temperature": 0}}
EVENT: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)


@pytest.fixture(scope="module")
def claude(server: ServerProcess) -> Iterator[Anthropic]:
    with Anthropic(base_url=server.url, api_key=KEY, max_retries=0, timeout=120) as made:
        yield made


@pytest_asyncio.fixture
async def async_claude(server: ServerProcess) -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(base_url=server.url, api_key=KEY, max_retries=0, timeout=120) as made:
        yield made


def text_of(message: Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def test_a_message_is_what_a_chat_says(claude: Anthropic, client: OpenAI) -> None:
    chat = client.chat.completions.create(
        model="demo", temperature=0, max_tokens=20, messages=[{"role": "system", "content": "Be brief."}, *ASK]
    )
    made = claude.messages.create(system="Be brief.", messages=ASK, metadata={"user_id": "me"}, **GREEDY)
    Message.model_validate(made.model_dump())
    assert text_of(made) == chat.choices[0].message.content
    assert (made.stop_reason, made.stop_sequence, made.model) == ("end_turn", None, "demo")
    assert chat.usage is not None
    assert made.usage.input_tokens + (made.usage.cache_read_input_tokens or 0) == chat.usage.prompt_tokens
    assert made.usage.output_tokens == chat.usage.completion_tokens
    counted = claude.messages.count_tokens(model="demo", system="Be brief.", messages=ASK)
    assert counted.input_tokens == chat.usage.prompt_tokens


def test_the_billing_line_of_claude_code_does_not_keep_prompts_from_being_cached(claude: Anthropic) -> None:
    def ask(code: str) -> Message:
        billing: Any = {"type": "text", "text": f"x-anthropic-billing-header: cc_version={code}; cc_entrypoint=cli;"}
        rules: Any = {"type": "text", "text": "You are a careful assistant who answers in few words. " * 6}
        return claude.messages.create(system=[billing, rules], messages=ASK, **{**GREEDY, "max_tokens": 1})

    ask("00000")
    again = ask("1f2e3").usage
    assert (again.cache_read_input_tokens or 0) > again.input_tokens


def test_streams(claude: Anthropic, http: httpx.Client) -> None:
    whole = claude.messages.create(messages=ASK, **GREEDY)
    with claude.messages.stream(messages=ASK, **GREEDY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
        assert stream.request_id
    assert text == text_of(whole)
    assert text_of(final) == text
    assert (final.stop_reason, final.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
    body = {"model": "demo", "max_tokens": 20, "temperature": 0, "messages": ASK, "stream": True}
    with http.stream("POST", "/v1/messages", json=body) as response:
        assert response.headers["request-id"]
        lines = list(response.iter_lines())
    types = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    assert types[:3] == ["message_start", "ping", "content_block_start"]
    assert types[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    for line in lines:
        if line.startswith("data: ") and line != 'data: {"type":"ping"}':
            EVENT.validate_json(line.removeprefix("data: "))


async def test_the_asynchronous_client(async_claude: AsyncAnthropic) -> None:
    async with async_claude.messages.stream(messages=ASK, **GREEDY) as stream:
        text = "".join([piece async for piece in stream.text_stream])
    assert text == text_of(await async_claude.messages.create(messages=ASK, **GREEDY))


def test_why_it_ended(claude: Anthropic) -> None:
    made = claude.messages.create(messages=ASK, stop_sequences=["="], **GREEDY)
    assert (made.stop_reason, made.stop_sequence) == ("stop_sequence", "=")
    assert "=" not in text_of(made)
    made = claude.messages.create(messages=ASK, **{**GREEDY, "max_tokens": 2})
    assert made.stop_reason == "max_tokens"


def test_the_answer_goes_on_with_the_last_message(claude: Anthropic) -> None:
    whole = text_of(claude.messages.create(messages=ASK, **GREEDY))
    begin = whole[: len(whole) // 2].rstrip()
    rest = claude.messages.create(messages=[*ASK, {"role": "assistant", "content": begin}], **GREEDY)
    assert begin + text_of(rest) == whole


def test_keys(server: ServerProcess, claude: Anthropic) -> None:
    with pytest.raises(anthropic.AuthenticationError):
        claude.with_options(api_key="wrong").messages.create(messages=ASK, **GREEDY)
    body = {"model": "demo", "max_tokens": 1, "messages": ASK}
    for headers, status in (({}, 401), ({"x-api-key": KEY}, 200), ({"Authorization": f"Bearer {KEY}"}, 200)):
        answer = httpx.post(f"{server.url}/v1/messages", json=body, headers=headers)
        assert answer.status_code == status
        if status == 401:
            assert answer.json()["error"]["type"] == "authentication_error"


def error_of(response: httpx.Response, status: int, kind: str) -> str:
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"type", "error", "request_id"}
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    assert body["request_id"] == response.headers["request-id"]
    message: str = body["error"]["message"]
    return message


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "begin"),
    [
        ({"temperature": -1}, "temperature=-1"),
        ({"max_tokens": 0}, "max_tokens=0"),
        ({"max_tokens": 10**6}, "max_tokens=1000000"),
        ({"max_tokens": None}, "max_tokens: expected"),
        ({"messages": []}, "messages: "),
        ({"messages": [{"role": "user", "content": "x " * MAX_MODEL_LEN}]}, "the prompt has"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
         "messages[0].content[0].source.type: "),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url"}}]}]},
         "messages[0].content[0].source.url: this field is required"),
        ({"messages": [{"role": "user", "content": [
            {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}]}]},
         "messages[0].content[0].type='image_url': this model accepts text only"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"system": 3}, "system: expected"),
        ({"stop_sequences": [""]}, "stop_sequences="),
        ({"stop": ["x"]}, "stop: "),
        ({"n": 2}, "n: "),
        ({"tool_choice": {"type": "any"}}, "tool_choice="),
        ({"thinking": {"type": "enabled", "budget_tokens": 100}}, "thinking.budget_tokens=100"),
        ({"systm": "x"}, "unknown field 'systm'; did you mean 'system'?"),
    ],
)  # fmt: skip
def test_what_is_refused(http: httpx.Client, fields: Any, begin: str, stream: bool) -> None:
    body = {"model": "demo", "max_tokens": 20, "messages": ASK, "stream": stream, **fields}
    assert error_of(http.post("/v1/messages", json=body), 400, "invalid_request_error").startswith(begin)


def test_errors_that_the_clients_name(claude: Anthropic, http: httpx.Client) -> None:
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.create(messages=ASK, **{**GREEDY, "model": "demmo"})
    with pytest.raises(anthropic.BadRequestError):
        claude.messages.count_tokens(model="demo", messages=[])
    error_of(http.get("/v1/messages"), 405, "invalid_request_error")
    error_of(http.post("/v1/messages/unknown", json={}), 404, "not_found_error")
    error_of(http.post("/v1/messages", content=b"x" * 2_000_000), 413, "request_too_large")
    error_of(http.post("/v1/messages", content=b"{"), 400, "invalid_request_error")


def test_too_many_at_once(claude: Anthropic, http: httpx.Client) -> None:
    many = {"prompt": "hello", "n": MAX_SEQUENCES, "max_tokens": 200, "ignore_eos": True, "stream": True}
    with http.stream("POST", "/v1/completions", json=many) as first:
        lines = first.iter_lines()
        assert next(lines).startswith("data: ")
        body = {"model": "demo", "max_tokens": 20, "messages": ASK}
        response = http.post("/v1/messages", json=body)
        error_of(response, 529, "overloaded_error")
        assert int(response.headers["retry-after"]) >= 1
        with pytest.raises(anthropic.OverloadedError):
            claude.messages.create(messages=ASK, **GREEDY)
