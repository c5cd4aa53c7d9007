"""The requests of `scripts/chaos`, their answers, and how those are checked."""

import asyncio
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx

from jaxllm.serving.bench.client import EventReader

STORY = {"max_tokens": 300, "ignore_eos": True, "temperature": 0}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "find",
            "parameters": {"type": "object", "properties": {"text": {"type": "string", "maxLength": 80}},
                           "required": ["text"], "additionalProperties": False},
        },
    }
]  # fmt: skip
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 80}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "greedy": (COMPLETIONS, {"prompt": "Once upon a time", **STORY}),
    "seeded": (COMPLETIONS, {"prompt": "The dog", **STORY, "temperature": 1, "seed": 3}),
    "several": (COMPLETIONS, {"prompt": "The cat", **STORY, "temperature": 1, "seed": 5, "n": 3}),
    "penalties": (
        COMPLETIONS,
        {"prompt": "A bird", **STORY, "presence_penalty": 0.5, "frequency_penalty": 0.4, "repetition_penalty": 1.1},
    ),
    "logprobs": (COMPLETIONS, {"prompt": "The sun", **STORY, "logprobs": 3, "max_tokens": 100}),
    "stop": (COMPLETIONS, {"prompt": "The tree", **STORY, "stop": ["zebra"], "min_tokens": 100}),
    "chat": (CHATS, {"messages": [{"role": "user", "content": "Tell me a story"}], **STORY}),
    "schema": (
        CHATS,
        {
            "messages": [{"role": "user", "content": "Who are you?"}], "temperature": 1, "seed": 7, "max_tokens": 200,
            "response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}},
        },
    ),
    "unseeded": (
        COMPLETIONS,
        {"prompt": "The fox", **STORY, "temperature": 1, "max_tokens": 120, "logprobs": 1, "return_token_ids": True},
    ),
    "tools": (
        CHATS,
        {
            "messages": [{"role": "user", "content": "Find a fox"}], "temperature": 1, "seed": 9, "max_tokens": 200,
            "tools": TOOLS, "tool_choice": "required",
        },
    ),
}  # fmt: skip
"""Requests by path and body. Each is asked as a stream and as a whole. All but the unseeded have one right answer."""
UNSEEDED = "unseeded"
IGNORED = ("id", "created", "prompt_tokens_details", "system_fingerprint")
"""Fields that differ between two answers to the same request."""
SHORTEST_GAP = 0.05
"""Seconds without an event, from which on a stream stands still."""
_NO_ENGINE = "engine_unavailable"
_TOLERANCE = 1e-3
"""How far the log-probability of a token may be from that of the same token in a prompt."""


@dataclass
class Tally:
    """The outcome of a run. Times in seconds."""

    answers: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    turned_away: int = 0
    """Requests that were told to come back later, as no engine was there within the time that they may wait."""
    cut: int = 0
    """Connections that ended with the API server process that had them."""
    gaps: list[tuple[float, float]] = field(default_factory=list)
    """When streams that had begun stood still, from and to, in seconds since the epoch as in logs."""
    attacks: Counter[str] = field(default_factory=Counter)


def plain(value: Any) -> Any:
    """A value without what differs between two answers."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items() if key not in IGNORED}
    return [plain(each) for each in value] if isinstance(value, list) else value


def joined(known: Any, more: Any, key: str = "") -> Any:
    """The two parts of a stream as one: texts and lists one after the other, in whatever pieces they came."""
    if known is None or more is None:
        return more if known is None else known
    if isinstance(known, dict) and isinstance(more, dict):
        return {name: joined(known.get(name), more.get(name), name) for name in (*known, *(more.keys() - known))}
    if isinstance(known, list) and isinstance(more, list):
        if more and isinstance(more[0], dict) and "index" in more[0]:
            by_index = {each["index"]: each for each in known}
            for each in more:
                by_index[each["index"]] = joined(by_index.get(each["index"]), each)
            return [by_index[index] for index in sorted(by_index)]
        return known + more
    whole = key in ("model", "object", "role", "finish_reason", "type", "name")
    return known + more if isinstance(known, str) and not whole else more


def has_begun(found: Any) -> bool:
    """Whether the parts of a stream so far have anything that an engine made."""
    deltas = [] if found is None else [choice.get("delta", choice) for choice in found["choices"]]
    return any(delta.get(name) for delta in deltas for name in ("text", "content", "reasoning", "tool_calls"))


Answers = dict[tuple[str, bool], Any]
"""By kind, and whether they were streamed."""


class TurnedAwayError(RuntimeError):
    """The server says to come back later, before it has begun with an answer."""


class Client:
    """One connection to the server at a time."""

    def __init__(self, url: str) -> None:
        limits = httpx.Limits(max_connections=1)
        self._http = httpx.AsyncClient(base_url=url, timeout=None, limits=limits)
        self.port = 0
        """The port of this end of the connection."""

    async def _trace(self, event: str, info: dict[str, Any]) -> None:
        if event == "connection.connect_tcp.complete":
            self.port = info["return_value"].get_extra_info("client_addr")[1]

    async def ask(self, kind: str, *, stream: bool, tally: Tally) -> Any:
        """The answer, without what differs. Raises `RuntimeError` for an error of the server, and `TurnedAwayError`."""
        path, body = KINDS[kind]
        if not stream:
            return plain(await self.post(path, body, kind))
        found: Any = None
        reader, ended, last = EventReader(), False, 0.0
        asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
        async with self._http.stream("POST", path, json=asked, extensions={"trace": self._trace}) as response:
            if response.status_code != 200:
                await response.aread()
                _check(response, kind)
            async for data in response.aiter_bytes():
                now = time.time()
                if last and now - last > SHORTEST_GAP:
                    tally.gaps.append((last, now))
                for event in reader.feed(data):
                    ended = event == b"[DONE]"
                    part = {} if ended else json.loads(event)
                    if "error" in part:
                        too_early = part["error"].get("code") == _NO_ENGINE and not has_begun(found)
                        raise (TurnedAwayError if too_early else RuntimeError)(f"{kind}: {part['error']}")
                    found = joined(found, plain(part))
                last = now if has_begun(found) else 0.0
        if not ended:
            raise RuntimeError(f"{kind}: the stream was cut off")
        return found

    async def post(self, path: str, body: dict[str, Any], kind: str) -> Any:
        """The body of an answer. Raises `RuntimeError` for an error of the server, and `TurnedAwayError`."""
        response = await self._http.post(path, json=body, extensions={"trace": self._trace})
        _check(response, kind)
        return response.json()

    async def doubt(self, answer: Any) -> str | None:
        """What is wrong with an unseeded answer: each of its tokens must be as likely as the model says.

        One that was lost, or came twice, changes what the model says of all that follow.
        """
        (choice,) = answer["choices"]
        told, ids = choice["logprobs"], choice["token_ids"]
        if not len(ids) == len(told["tokens"]) == KINDS[UNSEEDED][1]["max_tokens"]:
            return f"{len(ids)} tokens"
        prompt = choice.get("prompt_token_ids") or answer["prompt_token_ids"]
        asked = {"prompt": [*prompt, *ids], "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
        again = await self.post(COMPLETIONS, asked, "the tokens of an unseeded one")
        scores = again["choices"][0]["prompt_logprobs"][len(prompt) :]
        for place, (token, known, score) in enumerate(zip(ids, told["token_logprobs"], scores, strict=True)):
            if abs(score[str(token)]["logprob"] - known) > _TOLERANCE:
                return f"token {place} has log-probability {known}, not {score[str(token)]['logprob']}"
        return None

    async def answers(self, tally: Tally) -> Answers:
        """Those to requests of all kinds, of a server that nobody disturbs."""
        asked = [(kind, stream) for kind in KINDS for stream in (False, True)]
        found = {each: await self.ask(each[0], stream=each[1], tally=tally) for each in asked}
        for stream in (False, True):
            if (wrong := await self.doubt(found[UNSEEDED, stream])) is not None:
                tally.wrong.append(wrong)
        return found

    async def close(self) -> None:
        """Close the connection."""
        await self._http.aclose()


async def ask_until(over: asyncio.Event, client: Client, wanted: Answers, tally: Tally, broken: set[int]) -> None:
    """Ask at random, and compare. Connections from ports that are `broken` may end."""
    while not over.is_set():
        kind, stream = random.choice(list(wanted))
        try:
            found = await client.ask(kind, stream=stream, tally=tally)
            doubt = await client.doubt(found) if kind == UNSEEDED else None
        except TurnedAwayError:
            tally.turned_away += 1
            await asyncio.sleep(1)
            continue
        except (RuntimeError, httpx.HTTPError) as error:
            if client.port in broken:
                # The next connection has another port, and no excuse if there is none.
                tally.cut, client.port = tally.cut + 1, 0
            else:
                tally.errors.append(f"{kind}, stream={stream}: {error!r}")
            continue
        tally.answers[kind] += 1
        if doubt is not None:
            tally.wrong.append(f"{kind}, stream={stream}: {doubt}: {found}")
        elif kind != UNSEEDED and found != wanted[kind, stream]:
            tally.wrong.append(f"{kind}, stream={stream}: {found} instead of {wanted[kind, stream]}")


def _check(response: httpx.Response, kind: str) -> None:
    """Raise `TurnedAwayError` for a response that says to come back later, `RuntimeError` for other errors."""
    if response.status_code == 503 and response.json()["error"]["code"] == _NO_ENGINE:
        raise TurnedAwayError(response.text)
    if response.status_code != 200:
        raise RuntimeError(f"{kind}: {response.status_code} {response.text[:300]}")
