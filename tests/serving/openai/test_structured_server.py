"""Structured outputs over HTTP: OpenAI's own helpers, every name, and grammars that nobody should send."""

import asyncio
import json
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

from tests.conftest import RunPython
from tests.serving.openai.conftest import KEY
from tests.serving.server_process import ServerProcess

QUESTION: list[Any] = [{"role": "user", "content": "Give me a JSON object for Mira with name, animal and likes."}]


class Friend(BaseModel):
    """Somebody of the demo model's stories."""

    name: str
    animal: str
    likes: list[str]


def test_pydantic_models(client: OpenAI) -> None:
    request: dict[str, Any] = {"model": "demo", "messages": QUESTION, "temperature": 0, "max_tokens": 80}
    whole = client.chat.completions.parse(**request, response_format=Friend)
    found = whole.choices[0].message.parsed
    assert isinstance(found, Friend)
    assert found.name == "Mira"
    with client.chat.completions.stream(**request, response_format=Friend) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_completion()
    assert streamed.choices[0].message.parsed == found
    assert streamed.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"guided_choice": ["a red", "a blue"]}, {"a red", "a blue"}),
        ({"guided_regex": "(1|2)3"}, {"13", "23"}),
        ({"guided_grammar": 'root ::= "yes" | "no"'}, {"yes", "no"}),
        ({"guided_json": {"enum": [1, "x"]}}, {"1", '"x"'}),
        ({"structured_outputs": {"grammar": 'start: "up" | "down"'}}, {"up", "down"}),
    ],
)
def test_completions_with_several_choices(client: OpenAI, fields: dict[str, Any], expected: set[str]) -> None:
    request: dict[str, Any] = {"model": "demo", "prompt": ["Hello", "Once"], "n": 3, "seed": 1, "extra_body": fields}
    whole = client.completions.create(**request)
    texts = [choice.text for choice in whole.choices]
    assert len(texts) == 6
    assert set(texts) <= expected
    assert {choice.finish_reason for choice in whole.choices} == {"stop"}
    streamed = [""] * 6
    for chunk in client.completions.create(**request, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
    assert streamed == texts


def test_json_objects_and_forced_pieces(client: OpenAI) -> None:
    found = client.chat.completions.create(
        model="demo", messages=QUESTION, response_format={"type": "json_object"}, max_tokens=100, temperature=0
    )
    assert isinstance(json.loads(found.choices[0].message.content or ""), dict)


def test_parts_that_follow_schemas(client: OpenAI) -> None:
    tag = {
        "type": "structural_tag",
        "structures": [{"begin": "<n>", "schema": {"type": "integer", "minimum": 3, "maximum": 7}, "end": "</n>"}],
        "triggers": ["<n>"],
    }
    found = client.completions.create(
        model="demo",
        prompt="A number: <n>4</n> <n>5</n> <n>",
        max_tokens=30,
        seed=3,
        extra_body={"response_format": tag},
    )
    for part in found.choices[0].text.split("<n>")[1:]:
        number, closed, _ = part.partition("</n>")
        assert not closed or 3 <= int(number) <= 7


HOSTILE: list[tuple[dict[str, Any], set[int]]] = [
    ({"guided_json": '{"a":' * 10_000 + "1" + "}" * 10_000}, {400}),
    ({"guided_json": {"$ref": "https://example.com/schema.json"}}, {400}),
    ({"guided_json": {"type": "array", "uniqueItems": True}}, {400}),
    ({"guided_json": {"not": {"type": "null"}}}, {400}),
    ({"guided_json": {"enum": [f"value {number * 7919}" for number in range(20_000)]}}, {400}),
    ({"guided_json": {"type": "integer", "minimum": 5, "maximum": 3}}, {400}),
    ({"guided_regex": "(?=a)b"}, {400}),
    ({"guided_regex": "a(b"}, {400}),
    ({"guided_grammar": "root ::= (((("}, {400}),
    ({"guided_grammar": "start: foo bar"}, {400}),
    ({"guided_grammar": "start: start"}, {400}),
    ({"guided_choice": [str(number) for number in range(20_000)]}, {400}),
    # Steep, and not wrong: refused when a limit is met, if one is.
    ({"guided_regex": "((((a{0,9}){0,9}){0,9}b{0,9}){0,9}c{0,900}){0,900}(.{0,900}){900}"}, {200, 400}),
    ({"guided_grammar": 'start: e\ne: e e | "a" | "b" | /[a-z ]/ | e e e'}, {200, 400}),
]


async def ask(client: AsyncOpenAI, *, streaming: bool, **fields: Any) -> tuple[int, str]:
    """Status and text, or what is wrong; an error inside a stream has a status of its own."""
    try:
        answer: Any = await client.completions.create(
            model="demo", prompt="Hello", max_tokens=20, stream=streaming, extra_body=fields
        )
        if not streaming:
            return 200, answer.choices[0].text
        return 200, "".join([chunk.choices[0].text async for chunk in answer])
    except openai.APIStatusError as error:
        return error.status_code, str(error)
    except openai.APIError as error:
        return {"invalid_value": 400}.get(str(error.code), 500), str(error)


async def test_hostile_grammars_bother_nobody(async_client: AsyncOpenAI) -> None:
    async def stream() -> int:
        chunks = await async_client.completions.create(
            model="demo", prompt="Once", max_tokens=240, stream=True, extra_body={"ignore_eos": True}
        )
        return len([chunk async for chunk in chunks])

    good = {"guided_grammar": 'root ::= "yes" | "no"'}
    running = [asyncio.create_task(stream()) for _ in range(2)]
    for fields, expected in HOSTILE:
        for streaming in (False, True):
            async with asyncio.timeout(60):
                status, text = await ask(async_client, streaming=streaming, **fields)
            assert status in expected, (fields, text[:500])
            assert len(text) < 2000
        assert (await ask(async_client, streaming=False, **good))[1] in ("yes", "no")
    assert all(await asyncio.gather(*running))


INSTRUCTOR = """
import sys
import instructor
from openai import OpenAI
from pydantic import BaseModel

class Friend(BaseModel):
    name: str
    animal: str
    likes: list[str]

plain = OpenAI(base_url=sys.argv[1], api_key=sys.argv[2], max_retries=0)
client = instructor.from_openai(plain, mode=instructor.Mode.JSON_SCHEMA)
found = client.chat.completions.create(
    model="demo", response_model=Friend, max_tokens=80, temperature=0, max_retries=0,
    messages=[{"role": "user", "content": "Give me a JSON object for Mira with name, animal and likes."}],
)
assert isinstance(found, Friend), found
"""


def test_instructor(server: ServerProcess, run_python: RunPython) -> None:
    done = run_python("-c", INSTRUCTOR, f"{server.url}/v1", KEY)
    assert done.returncode == 0, done.stdout + done.stderr
