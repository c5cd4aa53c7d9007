"""The load of a soak: everything that clients do, well and badly, in a random order."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp

CHAT, COMPLETIONS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
NAMES = ("Mira", "Tobin", "Lena", "Oskar", "Ada")


class UnexpectedAnswerError(Exception):
    """An answer that is not as it should be."""


@dataclass
class Tally:
    """Outcomes of the requests: by workload, how many ended as they should; and what went wrong how often."""

    done: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)


class Requests:
    """The requests of one worker, which has a random generator and a session of its own."""

    def __init__(self, session: aiohttp.ClientSession, port: int, rng: random.Random) -> None:
        self._session, self._port, self._rng = session, port, rng

    async def chat(self) -> None:
        """A chat, answered at once."""
        answer = await self._post(CHAT, {**self._messages(), "max_tokens": self._rng.randint(1, 64)})
        _expect(answer["choices"][0]["finish_reason"] in ("stop", "length"), answer)

    async def stream(self) -> None:
        """A stream, read to its end."""
        path, body = self._rng.choice(((CHAT, self._messages()), (COMPLETIONS, self._prompt())))
        last = b""
        async for event in self._events(path, {**body, "max_tokens": self._rng.randint(1, 200)}):
            last = event
        _expect(last == b"[DONE]", last)

    async def slow_reader(self) -> None:
        """A stream whose client now and then takes its time."""
        async for _ in self._events(COMPLETIONS, {**self._prompt(), "max_tokens": 60}):
            if self._rng.random() < 0.05:
                await asyncio.sleep(0.3)

    async def abort(self) -> None:
        """A long stream that is left in the middle."""
        left = self._rng.randint(0, 20)
        body = {**self._prompt(), "max_tokens": 400, "ignore_eos": True, "n": self._rng.choice((1, 1, 4))}
        events = self._events(COMPLETIONS, body)
        async for _ in events:
            left -= 1
            if left < 0:
                break
        await events.aclose()  # type: ignore[attr-defined]

    async def leave_at_once(self) -> None:
        """A connection that is closed within a request, or before any answer."""
        body = json.dumps({**self._prompt(), "max_tokens": 300}).encode()
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: soak\r\nContent-Type: application/json\r\n"
        data = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        _, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(data[: self._rng.choice((0, 10, len(data) - 5, len(data)))])
        await writer.drain()
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()

    async def json_schema(self) -> None:
        """A form that may not have been seen before."""
        fields = self._rng.sample([f"field_{number}" for number in range(40)], self._rng.randint(1, 4))
        schema = {
            "type": "object",
            "properties": {name: self._rng.choice(SCHEMAS) for name in fields},
            "required": fields,
            "additionalProperties": False,
        }
        form = {"type": "json_schema", "json_schema": {"name": "thing", "schema": schema}}
        answer = await self._post(CHAT, {**self._messages(), "max_tokens": 200, "response_format": form})
        choice = answer["choices"][0]
        if choice["finish_reason"] == "stop":
            _expect(set(json.loads(choice["message"]["content"])) == set(fields), answer)

    async def regex(self) -> None:
        """An expression, with a stream."""
        digits = self._rng.randint(1, 50)
        text = ""
        body = {**self._prompt(), "max_tokens": 100, "structured_outputs": {"regex": rf"x[0-9]{{{digits}}}y"}}
        async for event in self._events(COMPLETIONS, body):
            if event != b"[DONE]":
                text += json.loads(event)["choices"][0]["text"]
        _expect(len(text) == digits + 2, text)

    async def tools(self) -> None:
        """A call that must be made."""
        parameters = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}}
        tool = {
            "type": "function",
            "function": {"name": f"weather_{self._rng.randrange(30)}", "parameters": parameters},
        }
        body = {**self._messages(), "tools": [tool], "tool_choice": "required", "max_tokens": 120, "stream": True}
        seen = False
        async for event in self._events(CHAT, body):
            seen = seen or b'"tool_calls"' in event
        _expect(seen, "no call")

    async def bad_input(self) -> None:
        """A request that must be refused."""
        path, data = self._rng.choice(BAD)
        headers = {"Content-Type": "application/json"}
        async with self._session.post(path, data=data, headers=headers) as response:
            _expect(400 <= response.status < 500, (response.status, (await response.text())[:200]))

    async def responses(self) -> None:
        """A conversation that the server keeps, and forgets half of the time."""
        first = await self._post(RESPONSES, {"input": self._text(), "max_output_tokens": 20})
        body = {"input": self._text(), "max_output_tokens": 20, "previous_response_id": first["id"]}
        second = await self._post(RESPONSES, body)
        _expect(second["status"] in ("completed", "incomplete"), second)
        if self._rng.random() < 0.5:
            for each in (first, second):
                async with self._session.delete(f"{RESPONSES}/{each['id']}") as response:
                    _expect(response.status == 200, response.status)

    async def messages(self) -> None:
        """Anthropic's interface, with a stream."""
        last = b""
        async for event in self._events(MESSAGES, {**self._messages(), "max_tokens": 40}):
            last = event
        _expect(b"message_stop" in last, last)

    async def extras(self) -> None:
        """Several sequences, log-probabilities, beams, biases, bad words, stop strings."""
        body = {**self._prompt(), "max_tokens": self._rng.randint(1, 60), **self._rng.choice(EXTRAS)}
        answer = await self._post(COMPLETIONS, body)
        _expect(len(answer["choices"]) == body.get("n", 1), answer)

    async def long_prompt(self) -> None:
        """A prompt that takes several steps, and whose beginning others may share."""
        beginning = "Once upon a time there was a girl who had a dog. " * self._rng.choice((5, 15, 30))
        await self._post(COMPLETIONS, {"prompt": beginning + self._text(), "max_tokens": 4})

    async def small_things(self) -> None:
        """Tokens of a text and back, the models, metrics, health."""
        text = self._text()
        tokens = await self._post("/tokenize", {"prompt": text, "add_special_tokens": False})
        back = await self._post("/detokenize", {"tokens": tokens["tokens"]})
        _expect(back["prompt"] == text, back)
        for path in ("/v1/models", "/metrics", "/health", "/load"):
            async with self._session.get(path) as response:
                await response.read()
                _expect(response.status == 200, (path, response.status))

    def _text(self) -> str:
        return f"{self._rng.choice(TEXTS)} {self._rng.choice(NAMES)} {self._rng.randrange(1000)}"

    def _prompt(self) -> dict[str, Any]:
        return {"prompt": self._text(), "temperature": self._rng.choice((0.0, 1.0))}

    def _messages(self) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": self._text()}], "temperature": self._rng.choice((0.0, 1.0))}

    async def _post(self, path: str, body: dict[str, Any]) -> Any:
        async with self._session.post(path, json=body) as response:
            _expect(response.status == 200, (path, response.status, (await response.text())[:200]))
            return await response.json()

    async def _events(self, path: str, body: dict[str, Any]) -> AsyncIterator[bytes]:
        """The data of a stream's events."""
        async with self._session.post(path, json={**body, "stream": True}) as response:
            _expect(response.status == 200, (path, response.status))
            async for line in response.content:
                if line.startswith(b"data: "):
                    _expect(b'"error"' not in line[:20], line)
                    yield line[6:].strip()


FAILURES = (UnexpectedAnswerError, aiohttp.ClientError, OSError, TimeoutError, ValueError, KeyError)
"""Raised by a workload when the server does not do as it should."""

TEXTS = ("What is 17 + 25?", "Where does she live,", "Tell me a story of", "Give me a JSON object for", "Who is 🙂")
SCHEMAS: tuple[dict[str, Any], ...] = (
    {"type": "integer"},
    {"type": "boolean"},
    {"type": "string", "maxLength": 12},
    {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
    {"enum": ["red", "green", "blue"]},
)
EXTRAS: tuple[dict[str, Any], ...] = (
    {"n": 4, "temperature": 1.0, "logprobs": 3},
    {"logprobs": 2, "prompt_logprobs": 1, "echo": True},
    {"use_beam_search": True, "n": 3, "temperature": 0.0},
    {"bad_words": ["the dog", "girl", "once upon"], "temperature": 1.0},
    {"stop": ["dog", ". ", "\n"], "presence_penalty": 1.0, "seed": 7},
    {"logit_bias": {"5": 3.0, "60": -100}, "allowed_token_ids": list(range(1000))},
    {"min_tokens": 1, "stop_token_ids": [30, 31], "repetition_penalty": 1.3},
)
BAD: tuple[tuple[str, bytes], ...] = (
    (COMPLETIONS, b'{"prompt": "hello"'),
    (COMPLETIONS, b"\x80" * 1000),
    (COMPLETIONS, b'{"prompt": ' + b"[" * 10_000),
    (COMPLETIONS, b'{"prompt": "x", "temperature": 1e999}'),
    (COMPLETIONS, b'{"prompt": "x", "n": 1000000000000000000000}'),
    (COMPLETIONS, b'{"prompt": "' + b"the cat sat " * 5000 + b'"}'),
    (CHAT, b'{"messages": []}'),
    (CHAT, b'{"messages": [{"role": "user", "content": "x"}], "model": "gpt-4"}'),
    (CHAT, b'{"messages": [{"role": "user", "content": "x"}], "guided_json": {"$ref": "#/nowhere"}}'),
    (CHAT, b'{"messages": [{"role": "user", "content": "x"}], "guided_regex": "((((("}'),
    (RESPONSES, b'{"input": "x", "previous_response_id": "resp_unknown"}'),
    (MESSAGES, b"{}"),
    ("/tokenize", b'{"prompt": 5}'),
    ("/nowhere", b"{}"),
)

Workload = Callable[[Requests], Awaitable[None]]
MIXTURE: tuple[tuple[Workload, int], ...] = (
    (Requests.chat, 4),
    (Requests.stream, 6),
    (Requests.slow_reader, 1),
    (Requests.abort, 3),
    (Requests.leave_at_once, 3),
    (Requests.json_schema, 3),
    (Requests.regex, 2),
    (Requests.tools, 2),
    (Requests.bad_input, 4),
    (Requests.responses, 2),
    (Requests.messages, 2),
    (Requests.extras, 4),
    (Requests.long_prompt, 2),
    (Requests.small_things, 3),
)
"""Workloads, and how often each is drawn."""


def _expect(holds: bool, found: object) -> None:
    if not holds:
        raise UnexpectedAnswerError(str(found)[:300])


async def run_load(base_url: str, port: int, *, workers: int, pause: float, seed: int, until: float) -> Tally:
    """Ask with so many workers, which each rest `pause` seconds on average, until this time of the event loop."""
    tally, loop = Tally(), asyncio.get_running_loop()
    timeout = aiohttp.ClientTimeout(total=120)

    async def work(index: int) -> None:
        rng = random.Random(seed * 1000 + index)
        workloads, weights = zip(*MIXTURE, strict=True)
        async with aiohttp.ClientSession(base_url, timeout=timeout) as session:
            requests = Requests(session, port, rng)
            while loop.time() < until:
                (workload,) = rng.choices(workloads, weights)
                name = workload.__name__
                try:
                    await workload(requests)
                    tally.done[name] += 1
                except (
                    UnexpectedAnswerError,
                    aiohttp.ClientError,
                    OSError,
                    TimeoutError,
                    ValueError,
                    KeyError,
                ) as error:
                    tally.failed[f"{name}: {type(error).__name__}: {error}"] += 1
                await asyncio.sleep(rng.expovariate(1 / pause))

    await asyncio.gather(*(work(index) for index in range(workers)))
    return tally
