"""Streams of `jaxllm serve` as a client reads them, and the same requests offline."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from jaxllm import LLM, SamplingParams
from jaxllm.serving.bench.client import EventReader


@dataclass
class Choice:
    """The text and the end of one choice."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None


@dataclass(frozen=True)
class Ask:
    """A request: a conversation or a prompt, and parameters that offline generation has too."""

    prompt: str | list[int] | list[dict[str, Any]]
    params: dict[str, Any]

    @property
    def chat(self) -> bool:
        """Whether it is a conversation."""
        return isinstance(self.prompt, list) and isinstance(self.prompt[0], dict)

    @property
    def path(self) -> str:
        """Where to send it."""
        return "/v1/chat/completions" if self.chat else "/v1/completions"

    def body(self, **more: Any) -> dict[str, Any]:
        """The body to send there."""
        asked = {"messages" if self.chat else "prompt": self.prompt, **self.params}
        return {"stream": True, "return_token_ids": True, **asked, **more}


def offline(llm: LLM, asks: Sequence[Ask]) -> list[list[Choice]]:
    """The choices of every request, from an engine in this process."""
    found: dict[int, list[Choice]] = {}
    for chat in (False, True):
        chosen = [index for index, ask in enumerate(asks) if ask.chat == chat]
        prompts: list[Any] = [asks[index].prompt for index in chosen]
        params = [_params(llm, asks[index].params) for index in chosen]
        outputs = (llm.chat if chat else llm.generate)(prompts, params, use_tqdm=False) if chosen else []
        for index, output in zip(chosen, outputs, strict=True):
            found[index] = [
                Choice(each.text, list(each.token_ids), each.finish_reason, each.stop_reason) for each in output.outputs
            ]
    return [found[index] for index in range(len(asks))]


def _params(llm: LLM, given: dict[str, Any]) -> SamplingParams:
    params = llm.get_default_sampling_params()
    for name, value in given.items():
        setattr(params, name, value)
    params.validate()
    return params


class Chunks:
    """Puts the events of a stream together."""

    def __init__(self) -> None:
        self.choices: dict[int, Choice] = {}
        self.errors: list[dict[str, Any]] = []
        self.num_events = 0
        self.done = False
        self._reader = EventReader()

    def feed(self, data: bytes) -> None:
        """Take bytes of the response's body."""
        for event in self._reader.feed(data):
            assert not self.done, "an event after the last"
            self.num_events += 1
            if event == b"[DONE]":
                self.done = True
            else:
                self._take(json.loads(event))

    def _take(self, chunk: dict[str, Any]) -> None:
        if "error" in chunk:
            self.errors.append(chunk["error"])
        for part in chunk.get("choices", ()):
            choice = self.choices.setdefault(part["index"], Choice())
            assert choice.finish_reason is None, "a piece after the last"
            choice.text += part["delta"].get("content", "") if "delta" in part else part["text"]
            choice.token_ids += part.get("token_ids") or ()
            choice.finish_reason, choice.stop_reason = part["finish_reason"], part.get("stop_reason")

    def whole(self) -> list[Choice]:
        """The choices of a stream that has ended as it should."""
        assert self.done, self.errors
        assert not self.errors
        return [self.choices[index] for index in range(len(self.choices))]


async def read_stream(session: aiohttp.ClientSession, ask: Ask, **more: Any) -> list[Choice]:
    """The choices of a request, streamed."""
    chunks = Chunks()
    async with session.post(ask.path, json=ask.body(**more)) as response:
        assert response.status == 200, await response.text()
        async for data in response.content.iter_any():
            chunks.feed(data)
    return chunks.whole()


async def read_streams(url: str, asks: Sequence[Ask]) -> list[list[Choice]]:
    """The choices of many requests, all sent at once."""
    async with open_session(url) as session:
        return list(await asyncio.gather(*(read_stream(session, ask) for ask in asks)))


def open_session(url: str) -> aiohttp.ClientSession:
    """A session with as many connections as there are requests. A context manager."""
    return aiohttp.ClientSession(
        url, connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None, sock_read=300)
    )
