"""The Responses API, by OpenAI's own client."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.serving.openai.conftest import MAX_MODEL_LEN
from tests.serving.openai.test_bad_input import error_of
from tests.serving.openai.test_disconnect import until

QUESTION = "What is 2 + 3?"
GREEDY: dict[str, Any] = {"model": "demo", "temperature": 0, "max_output_tokens": 20}
LONG: dict[str, Any] = {"model": "demo", "max_output_tokens": 230, "extra_body": {"ignore_eos": True, "seed": 1}}
EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)


@contextmanager
def busy(client: OpenAI) -> Iterator[None]:
    """Three times as many sequences as run at a time are before everything that comes during the block."""
    stream = client.completions.create(
        model="demo", prompt="hello", max_tokens=240, n=24, stream=True, extra_body={"ignore_eos": True}
    )
    next(stream)
    with stream:
        yield


def test_a_response_is_what_a_chat_says(client: OpenAI) -> None:
    chat = client.chat.completions.create(
        model="demo", temperature=0, max_tokens=20, messages=[
            {"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION},
        ], logprobs=True, top_logprobs=2,
    )  # fmt: skip
    made = client.responses.create(
        input=QUESTION, instructions="Be brief.", include=["message.output_text.logprobs"], top_logprobs=2,
        metadata={"a": "b"}, user="me", **GREEDY,
    )  # fmt: skip
    assert made.output_text == chat.choices[0].message.content
    assert made.status == "completed"
    assert (made.metadata, made.user, made.instructions) == ({"a": "b"}, "me", "Be brief.")
    assert made.usage is not None
    assert chat.usage is not None
    assert (made.usage.input_tokens, made.usage.output_tokens) == (
        chat.usage.prompt_tokens, chat.usage.completion_tokens
    )  # fmt: skip
    (message,) = made.output
    assert message.type == "message"
    assert message.content[0].type == "output_text"
    assert chat.choices[0].logprobs is not None
    assert [each.token for each in message.content[0].logprobs or ()] == [
        each.token for each in chat.choices[0].logprobs.content or ()
    ]


def test_streams(http: httpx.Client, client: OpenAI) -> None:
    whole = client.responses.create(input=QUESTION, **GREEDY)
    with client.responses.stream(input=QUESTION, **GREEDY) as stream:
        types = [event.type for event in stream]
        final = stream.get_final_response()
    assert final.output_text == whole.output_text
    assert types[0] == "response.created"
    assert types[-1] == "response.completed"
    assert types.count("response.output_text.delta") > 1
    with http.stream("POST", "/v1/responses", json={"input": QUESTION, **GREEDY, "stream": True}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = list(response.iter_lines())
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    # Deltas merge where they wait.
    assert list(dict.fromkeys(line.removeprefix("event: ") for line in lines if line.startswith("event: "))) == list(
        dict.fromkeys(types)
    )
    for number, event in enumerate(events):
        EVENT.validate_python(event)
        assert event["sequence_number"] == number
    Response.model_validate(events[-1]["response"])


@pytest.mark.parametrize("stream", [False, True])
def test_what_the_model_read_and_wrote(http: httpx.Client, stream: bool) -> None:
    body = {"input": "What is 2 + 3?", "max_output_tokens": 8, "enable_response_messages": True, "temperature": 0}
    answer = http.post("/v1/responses", json={**body, "stream": stream})
    if stream:
        events = [line.removeprefix("data: ") for line in answer.text.split("\n") if line.startswith("data: ")]
        made = json.loads(events[-1])["response"]
    else:
        made = answer.json()
    (read,), (written,) = made["input_messages"], made["output_messages"]
    assert read["type"] == written["type"] == "raw_message_tokens"
    assert "What is 2 + 3?" in read["message"]
    assert written["message"] == made["output"][0]["content"][0]["text"]
    assert (len(read["tokens"]), len(written["tokens"])) == (
        made["usage"]["input_tokens"], made["usage"]["output_tokens"],
    )  # fmt: skip
    told = http.post("/detokenize", json={"tokens": read["tokens"]}).json()["prompt"]
    assert told == read["message"]
    plain = http.post("/v1/responses", json={**body, "enable_response_messages": False}).json()
    assert not {"input_messages", "output_messages"} & plain.keys()


def test_tokens_of_the_input_are_counted(client: OpenAI) -> None:
    made = client.responses.create(input=QUESTION, instructions="Be brief.", **GREEDY)
    assert made.usage is not None
    counted = client.responses.input_tokens.count(model="demo", input=QUESTION, instructions="Be brief.")
    assert counted.input_tokens == made.usage.input_tokens
    more = client.responses.input_tokens.count(model="demo", input="And 3 + 4?", previous_response_id=made.id)
    assert more.input_tokens > counted.input_tokens
    long = client.responses.input_tokens.count(model="demo", input="cat " * 2 * MAX_MODEL_LEN)
    assert long.input_tokens > MAX_MODEL_LEN
    with pytest.raises(openai.NotFoundError):
        client.responses.input_tokens.count(model="demo", input="hello", previous_response_id="resp_unknown")


async def test_the_asynchronous_client(async_client: AsyncOpenAI) -> None:
    async with async_client.responses.stream(input=QUESTION, **GREEDY) as stream:
        text = "".join([event.delta async for event in stream if event.type == "response.output_text.delta"])
        final = await stream.get_final_response()
    assert text == final.output_text


def test_a_conversation_goes_on(client: OpenAI) -> None:
    first = client.responses.create(input="My name is Ada.", **GREEDY)
    second = client.responses.create(input=QUESTION, previous_response_id=first.id, **GREEDY)
    sent = client.responses.create(
        input=[{"role": "user", "content": "My name is Ada."}, *first.output, {"role": "user", "content": QUESTION}],
        **GREEDY,
    )
    assert second.previous_response_id == first.id
    assert second.output_text == sent.output_text
    assert second.usage is not None
    assert sent.usage is not None
    assert second.usage.input_tokens == sent.usage.input_tokens
    items = client.responses.input_items.list(second.id).data
    assert [item.type for item in items] == ["message"]
    again = [item.model_dump() for item in client.responses.input_items.list(sent.id, order="asc", limit=1)]
    assert [item["content"][0]["text"] for item in again] == ["My name is Ada.", first.output_text, QUESTION]
    referred = client.responses.create(
        input=[
            {"role": "user", "content": "My name is Ada."},
            {"type": "item_reference", "id": first.output[0].id or ""},
            {"role": "user", "content": QUESTION},
        ],
        **GREEDY,
    )
    assert referred.output_text == second.output_text


def test_what_is_stored(client: OpenAI) -> None:
    made = client.responses.create(input=QUESTION, **GREEDY)
    assert client.responses.retrieve(made.id) == made
    with client.responses.stream(input=QUESTION, **GREEDY) as stream:
        streamed = stream.get_final_response()
    assert client.responses.retrieve(streamed.id).output_text == streamed.output_text
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)
    with pytest.raises(openai.NotFoundError) as caught:
        client.responses.create(input="x", previous_response_id=made.id, **GREEDY)
    assert caught.value.param == "previous_response_id"
    hidden = client.responses.create(input=QUESTION, store=False, **GREEDY)
    for read in (client.responses.retrieve, client.responses.cancel, client.responses.input_items.list):
        with pytest.raises(openai.NotFoundError):
            read(hidden.id)
    with pytest.raises(openai.BadRequestError, match="background=true"):
        client.responses.cancel(streamed.id)
    with pytest.raises(openai.BadRequestError, match="background=true"):
        list(client.responses.retrieve(streamed.id, stream=True))


def test_the_background(client: OpenAI) -> None:
    made = client.responses.create(input=QUESTION, background=True, **GREEDY)
    assert made.status == "queued"
    until(lambda: client.responses.retrieve(made.id).status == "completed")
    done = client.responses.retrieve(made.id)
    assert done.output_text == client.responses.create(input=QUESTION, **GREEDY).output_text
    assert client.responses.cancel(made.id) == done
    with busy(client):
        waiting = client.responses.create(input="Tell me a story.", background=True, **LONG)
        with pytest.raises(openai.BadRequestError, match="still"):
            client.responses.create(input="x", previous_response_id=waiting.id, **GREEDY)
        assert client.responses.cancel(waiting.id).status == "cancelled"
    assert client.responses.retrieve(waiting.id).status == "cancelled"


def test_streams_of_the_background(client: OpenAI) -> None:
    stream = client.responses.create(input="Tell me a story.", background=True, stream=True, **LONG)
    first = next(stream)
    stream.close()
    assert first.type == "response.created"
    # Whoever comes later gets what was, and what is to come.
    events = list(client.responses.retrieve(first.response.id, stream=True))
    assert events[0] == first
    assert events[1].type == "response.queued"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].type == "response.incomplete"
    rest = list(client.responses.retrieve(first.response.id, stream=True, starting_after=10))
    assert rest == events[11:]
    assert list(client.responses.retrieve(first.response.id, stream=True, starting_after=10**6)) == []


def test_a_background_stream_that_is_cancelled_ends(client: OpenAI) -> None:
    stream = client.responses.create(input="Tell me a story.", background=True, stream=True, **LONG)
    first = next(stream)
    assert first.type == "response.created"
    client.responses.cancel(first.response.id)
    types = [event.type for event in stream]
    assert "response.completed" not in types
    client.responses.delete(first.response.id)


def test_a_long_conversation_can_be_cut(client: OpenAI) -> None:
    early = {"role": "user", "content": "x " * (MAX_MODEL_LEN // 2)}
    items: Any = [{"role": "system", "content": "Be brief."}, early, early, {"role": "user", "content": QUESTION}]
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(input=items, **GREEDY)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")
    cut = client.responses.create(input=items, truncation="auto", **GREEDY)
    kept = client.responses.create(input=[items[0], items[2], items[3]], **GREEDY)
    assert cut.output_text == kept.output_text
    assert cut.usage is not None
    assert kept.usage is not None
    assert cut.usage.input_tokens == kept.usage.input_tokens
    with pytest.raises(openai.BadRequestError):
        client.responses.create(input="x " * MAX_MODEL_LEN, truncation="auto", **GREEDY)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 10**6}, "max_output_tokens"),
        ({"max_output_token": 3}, "max_output_token"),
        ({"input": []}, "input"),
        ({"input": "x " * MAX_MODEL_LEN}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
         "input[0].content[0].type"),
        ({"input": [{"role": "user", "contents": "x"}]}, "input[0].contents"),
        ({"input": [{"type": "item_reference", "id": "msg_unknown"}]}, "input[0].id"),
        ({"input": 3}, "input"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 21}, "top_logprobs"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"metadata": {str(index): "" for index in range(17)}}, "metadata"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"background": True, "store": False}, "background"),
        ({"previous_response_id": "resp_unknown"}, "previous_response_id"),
        ({"truncation": "x"}, "truncation"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"conversation": "x"}, "conversation"),
        ({"n": 2}, "n"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"inputs": "x"}, "inputs"),
        ({"chat_template": "x"}, "chat_template"),
    ],
)  # fmt: skip
def test_what_is_refused(http: httpx.Client, fields: Any, param: str, stream: bool) -> None:
    response = http.post("/v1/responses", json={"input": "hello", "stream": stream, **fields})
    assert error_of(response, 404 if param == "previous_response_id" else 400)["param"] == param


@pytest.mark.parametrize(
    ("method", "path", "status", "param"),
    [
        ("GET", "/v1/responses/resp_unknown", 404, "response_id"),
        ("DELETE", "/v1/responses/resp_unknown", 404, "response_id"),
        ("POST", "/v1/responses/resp_unknown/cancel", 404, "response_id"),
        ("GET", "/v1/responses/resp_unknown/input_items", 404, "response_id"),
        ("GET", "/v1/responses/{id}?starting_after=3", 400, "starting_after"),
        ("GET", "/v1/responses/{id}?stream=perhaps", 400, "stream"),
        ("GET", "/v1/responses/{id}?streams=true", 400, "streams"),
        ("GET", "/v1/responses/{id}/input_items?limit=0", 400, "limit"),
        ("GET", "/v1/responses/{id}/input_items?limit=101", 400, "limit"),
        ("GET", "/v1/responses/{id}/input_items?order=up", 400, "order"),
        ("GET", "/v1/responses/{id}/input_items?after=msg_unknown", 400, "after"),
        ("PUT", "/v1/responses/{id}", 405, None),
    ],
)
def test_wrong_retrievals(
    http: httpx.Client, stored_id: str, method: str, path: str, status: int, param: str | None
) -> None:
    assert error_of(http.request(method, path.format(id=stored_id)), status)["param"] == param


@pytest.fixture(scope="module")
def stored_id(client: OpenAI) -> str:
    return client.responses.create(input="hello", **GREEDY).id


def test_an_answer_goes_on_where_it_was_left(client: OpenAI) -> None:
    asked: Any = {"role": "user", "content": "What is 2 + 3?"}
    whole = client.responses.create(model="demo", input=[asked], temperature=0, max_output_tokens=30).output_text
    begin = whole[: len(whole) // 2].rstrip()
    said: dict[str, Any] = {
        "type": "message", "id": "msg_1", "role": "assistant", "status": "in_progress",
        "content": [{"type": "output_text", "text": begin, "annotations": []}],
    }  # fmt: skip
    items: Any = [asked, said]
    rest = client.responses.create(model="demo", input=items, temperature=0, max_output_tokens=30).output_text
    assert begin + rest == whole


def test_custom_tools_and_namespaces(client: OpenAI) -> None:
    tools: Any = [
        {"type": "custom", "name": "note", "description": "Writes a note."},
        {"type": "namespace", "name": "shop", "description": "A shop.", "tools": [
            {"type": "function", "name": "buy", "parameters": {"type": "object", "properties": {"a": {"enum": [7]}},
                                                               "required": ["a"]}},
        ]},
    ]  # fmt: skip
    choice: Any = {"type": "custom", "name": "note"}
    asked: dict[str, Any] = {"model": "demo", "input": "hello", "tools": tools, "temperature": 0}
    made = client.responses.create(**asked, tool_choice=choice)
    if made.status == "completed":
        (item,) = made.output
        assert (item.type, item.name) == ("custom_tool_call", "note")
        back: Any = [
            {"role": "user", "content": "hello"}, item.model_dump(exclude_none=True),
            {"type": "custom_tool_call_output", "call_id": item.call_id, "output": "done"},
        ]  # fmt: skip
        again = {**asked, "input": back}
        assert client.responses.create(**again, tool_choice="none", max_output_tokens=5).output
    bought = client.responses.create(**asked, tool_choice={"type": "function", "name": "buy"})
    (call,) = bought.output
    assert call.type == "function_call"
    assert (call.name, call.namespace, json.loads(call.arguments)) == ("buy", "shop", {"a": 7})
    with client.responses.stream(**asked, tool_choice={"type": "function", "name": "buy"}) as stream:
        assert stream.get_final_response().output[0].type == "function_call"
    events = [event.type for event in client.responses.create(**asked, tool_choice=choice, stream=True)]
    assert "response.custom_tool_call_input.done" in events
