"""A storm of bad input, all at once: each gets its answer, and streams alongside it do not notice.

What every single field refuses, and wrong keys, are the business of tests/serving/openai.
"""

import asyncio
import io
import json
from typing import Any

import aiohttp

from jaxllm import LLM
from tests.e2e.serving.conftest import OPTIONS
from tests.e2e.serving.metrics import Metrics
from tests.e2e.serving.streams import Ask, Choice, offline, open_session, read_stream
from tests.serving.server_process import ServerProcess

COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
JSON = "application/json"
ROUNDS = 2
MEGABYTES_50 = b'{"prompt": "' + b"x" * 50_000_000 + b'"}'


def completion(**fields: Any) -> bytes:
    return json.dumps({"prompt": "hello", **fields}).encode()


def chat(**fields: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": "hello"}], **fields}).encode()


def nested(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = {"properties": {"a": value}}
    return value


HELLO = b'{"messages": [{"role": "user", "content": "hello"}]'
DEEP = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
TOOL = {"type": "function", "function": {"name": "f", "parameters": nested(400)}}

BAD: tuple[tuple[str, bytes, str, int, str | None], ...] = (
    # Path, body, content type; status and the field it names.
    (COMPLETIONS, b"prompt=hello", JSON, 400, None),
    (COMPLETIONS, b"", JSON, 400, None),
    (COMPLETIONS, b'{"prompt": "hello"', JSON, 400, None),
    (COMPLETIONS, b"\x80" * 1000, JSON, 400, None),
    (COMPLETIONS, b"prompt=hello", "application/x-www-form-urlencoded", 415, None),
    (CHATS, chat(), "text/plain", 415, None),
    (COMPLETIONS, MEGABYTES_50, JSON, 413, None),
    (CHATS, MEGABYTES_50, JSON, 413, None),
    (COMPLETIONS, completion(n=10**9), JSON, 400, "n"),
    (CHATS, chat(n=10**9), JSON, 400, "n"),
    (COMPLETIONS, completion(n=10**40), JSON, 400, "n"),
    (COMPLETIONS, completion(prompt=["x"] * 1024, n=64), JSON, 400, "n"),
    (COMPLETIONS, completion(logprobs=21), JSON, 400, "logprobs"),
    (CHATS, chat(logprobs=True, top_logprobs=21), JSON, 400, "top_logprobs"),
    (COMPLETIONS, completion(prompt_logprobs=21), JSON, 400, "prompt_logprobs"),
    (COMPLETIONS, completion(prompt=["x"] * 1025), JSON, 400, "prompt"),
    (COMPLETIONS, b"[" * 1_000_000, JSON, 400, None),
    (COMPLETIONS, b'{"prompt": ' + b"[" * 60_000, JSON, 400, "prompt[0][0]"),
    (COMPLETIONS, b'{"prompt": ' + b"[" * 1_000_000, JSON, 400, None),
    (CHATS, HELLO + b', "metadata": ' + DEEP + b"}", JSON, 400, None),
    (CHATS, HELLO + b', "chat_template_kwargs": ' + DEEP + b"}", JSON, 400, None),
    (CHATS, chat(tools=[TOOL], tool_choice="none"), JSON, 400, "messages"),
    (COMPLETIONS, completion(temperature=float("nan")), JSON, 400, "temperature"),
    (COMPLETIONS, completion(temperature=float("inf")), JSON, 400, "temperature"),
    (COMPLETIONS, b'{"prompt": "hello", "temperature": 1e999}', JSON, 400, "temperature"),
    (COMPLETIONS, b'{"prompt": "hello", "logit_bias": {"5": NaN}}', JSON, 400, "logit_bias.5"),
    (COMPLETIONS, completion(temperature=-1), JSON, 400, "temperature"),
    (COMPLETIONS, completion(max_tokens=10**9), JSON, 400, "max_tokens"),
    (CHATS, chat(max_completion_tokens=10**30), JSON, 400, "max_completion_tokens"),
    (COMPLETIONS, completion(prompt="\ud83d"), JSON, 400, "prompt"),
    (CHATS, chat(messages=[{"role": "user", "content": "\ude42"}]), JSON, 400, "messages[0].content"),
    (COMPLETIONS, completion(stop=["ok", "\udfff"]), JSON, 400, "stop[1]"),
    (COMPLETIONS, completion(prompt=""), JSON, 400, "prompt"),
    (COMPLETIONS, completion(prompt=[]), JSON, 400, "prompt"),
    (COMPLETIONS, completion(prompt=[5, 10**6]), JSON, 400, "prompt"),
    (COMPLETIONS, completion(prompt=[5, -1]), JSON, 400, "prompt"),
    (COMPLETIONS, completion(prompt=[5] * OPTIONS["max_model_len"]), JSON, 400, "prompt"),
    (COMPLETIONS, completion(prompt="the cat sat " * 20_000), JSON, 400, "prompt"),
    (CHATS, chat(messages=[{"role": "user", "content": "the cat sat " * 20_000}]), JSON, 400, "messages"),
    (CHATS, chat(messages=[]), JSON, 400, "messages"),
    (CHATS, chat(messages=[{"role": "user", "content": "x"}] * 2000), JSON, 400, "messages"),
    (CHATS, chat(model="gpt-4"), JSON, 404, "model"),
    (COMPLETIONS, completion(model="../../etc/passwd"), JSON, 404, "model"),
    (COMPLETIONS, completion(max_tokns=5), JSON, 400, "max_tokns"),
    (COMPLETIONS, completion(stop=[str(number) for number in range(100_000)]), JSON, 400, "stop"),
    (COMPLETIONS, completion(bad_words=[f"word {number}" for number in range(100_000)]), JSON, 400, "bad_words"),
    (CHATS, chat(bad_words=["x" * 100_000]), JSON, 400, "bad_words"),
    (COMPLETIONS, completion(stop=["x" * 100_000]), JSON, 400, "stop"),
    (COMPLETIONS, completion(stop_token_ids=list(range(100_000))), JSON, 400, "stop_token_ids"),
    (COMPLETIONS, completion(n=1000, allowed_token_ids=list(range(1000))), JSON, 400, "n"),
    (COMPLETIONS, completion(logit_bias={str(token): 1 for token in range(100_000)}), JSON, 400, "logit_bias"),
    ("/tokenize", b'{"prompt": 5}', JSON, 400, "prompt"),
    ("/detokenize", b'{"tokens": [-1]}', JSON, 400, "tokens[0]"),
)  # fmt: skip

NOT_HTTP = (
    b"GARBAGE\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
    b"POST /v1/completions HTTP/1.1\r\nContent-Length: many\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{",
    b"GET /v1/mod",
    b"",
)
"""Connections that end before they bring a request."""


async def test_bad_input_beside_streams(server: ServerProcess, llm: LLM) -> None:
    asks = [
        Ask("Once upon a time", {"temperature": 0, "max_tokens": 150, "ignore_eos": True}),
        Ask([{"role": "user", "content": "Tell me a story."}], {"temperature": 1.0, "seed": 1, "max_tokens": 150}),
    ]
    want = offline(llm, asks)
    async with open_session(server.url) as session:
        storm = asyncio.ensure_future(_storm(session, server.port))
        found = await asyncio.gather(*(_read_until(storm, session, ask) for ask in asks))
        await storm
    for texts, expected in zip(found, want, strict=True):
        assert all(text == expected for text in texts)
    Metrics.wait_until_idle(server.url)


async def _read_until(ended: "asyncio.Future[None]", session: aiohttp.ClientSession, ask: Ask) -> list[list[Choice]]:
    """The same stream again and again."""
    found = list[list[Choice]]()
    while not (found and ended.done()):
        found.append(await read_stream(session, ask))
    return found


async def _storm(session: aiohttp.ClientSession, port: int) -> None:
    for _ in range(ROUNDS):
        wrong = (_check(session, *each) for each in BAD)
        await asyncio.gather(*wrong, *(_send_and_leave(port, data) for data in NOT_HTTP))


async def _check(
    session: aiohttp.ClientSession, path: str, body: bytes, content_type: str, status: int, param: str | None
) -> None:
    what = f"{path} {body[:100]!r}"
    async with session.post(path, data=io.BytesIO(body), headers={"Content-Type": content_type}) as response:
        content = await response.read()
    assert response.status == status, (what, content)
    error = json.loads(content)["error"]
    assert set(error) == {"message", "type", "param", "code"}, what
    assert (error["type"], error["param"]) == ("invalid_request_error", param), (what, error)
    assert len(error["message"]) < 1000, what


async def _send_and_leave(port: int, data: bytes) -> None:
    """Send what is no request, and no more; an answer, if there is one, is a refusal."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    writer.write_eof()
    answer = await reader.read()
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400 "), answer
    writer.close()
    await writer.wait_closed()
