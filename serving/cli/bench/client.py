"""Sends the requests of a load test and times their streams."""

import asyncio
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from jaxllm.serving.cli.bench.workload import LoadRequest

_MAX_ERROR = 300


@dataclass(slots=True)
class LoadResult:
    """What became of one request. Times in seconds; `start` is of the monotonic clock, `ttft` and `latency` from there.

    `itls` are the gaps between the chunks that brought text. Chunks that were read at once, as a busy server or client
    makes them, share the gap before them: only their sum was seen. `token_ids` are there if the server was asked for
    them (vLLM's `return_token_ids`). `error` is empty when all went well.
    """

    start: float = 0.0
    ttft: float = 0.0
    latency: float = 0.0
    itls: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    output_tokens: int = 0
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class LoadTarget:
    """Where requests go, and what all of them carry. `url` is that of the endpoint."""

    url: str
    model: str
    headers: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    tls: ssl.SSLContext | None = None
    """What certificates are checked with; None: what is usual."""

    @property
    def is_chat(self) -> bool:
        """Whether prompts are messages."""
        return self.url.endswith("/chat/completions")

    def body(self, request: LoadRequest) -> dict[str, Any]:
        """The JSON of a request."""
        body: dict[str, Any] = {"model": self.model, "stream": True, "stream_options": {"include_usage": True}}
        if self.is_chat:
            prompt = request.prompt
            body["messages"] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
            body["max_completion_tokens"] = request.output_tokens
        else:
            body["prompt"] = request.prompt
            body["max_tokens"] = request.output_tokens
        return {**body, **self.extra}


class EventReader:
    """Splits a stream of bytes into the data of its events; OpenAI's carry one line of data each.

    The specification: https://html.spec.whatwg.org/multipage/server-sent-events.html. Bytes and not text lines: what
    Unicode calls a line separator may stand inside the JSON.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take bytes as they arrive; yields the data of every event line that they complete."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()


async def run_load(
    target: LoadTarget,
    requests: Sequence[LoadRequest],
    times: Sequence[float],
    max_concurrency: int | None = None,
    on_answer: Callable[[LoadResult], None] = lambda answer: None,
) -> list[LoadResult]:
    """Send every request at its time (seconds from now), at most `max_concurrency` at once; answers in their order.

    A request that fails is an answer with an error, never an exception.
    """
    gate = nullcontext() if max_concurrency is None else asyncio.Semaphore(max_concurrency)
    start = time.perf_counter()

    async def send(request: LoadRequest, due: float) -> LoadResult:
        await asyncio.sleep(due - (time.perf_counter() - start))
        async with gate:
            answer = await ask(session, target, request)
        on_answer(answer)
        return answer

    async with open_session(target) as session:
        return await asyncio.gather(*(send(request, due) for request, due in zip(requests, times, strict=True)))


def open_session(target: LoadTarget) -> aiohttp.ClientSession:
    """A session with room for any number of streams; a context manager."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60, ssl=target.tls or True)
    # Hours, since a loaded server may take long, but not for ever.
    timeout = aiohttp.ClientTimeout(total=6 * 3600, connect=None, sock_connect=60)
    return aiohttp.ClientSession(connector=connector, timeout=timeout, headers=target.headers)


async def ask(session: aiohttp.ClientSession, target: LoadTarget, request: LoadRequest) -> LoadResult:
    """Send one request and follow its stream; whatever goes wrong is in the answer's error."""
    answer = LoadResult(prompt_tokens=request.prompt_tokens)
    body = msgspec.json.encode(target.body(request))
    answer.start = time.perf_counter()
    try:
        async with session.post(target.url, data=body, headers={"Content-Type": "application/json"}) as response:
            if response.status != 200:
                answer.error = f"status {response.status}: {(await response.text())[:_MAX_ERROR]}"
            else:
                await _read(response, answer)
    except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError) as error:
        answer.error = f"{type(error).__name__}: {error}"[:_MAX_ERROR]
    return answer


async def _read(response: aiohttp.ClientResponse, answer: LoadResult) -> None:
    """Follow the stream to its end."""
    reader = EventReader()
    parts: list[str] = []
    last = answer.start
    ended = False
    async for data in response.content.iter_any():
        now = time.perf_counter()
        known = len(parts)
        for event in reader.feed(data):
            if event == b"[DONE]":
                ended = True
                continue
            chunk = msgspec.json.decode(event)
            if "error" in chunk:
                answer.error = str(chunk["error"])[:_MAX_ERROR]
                return
            usage = chunk.get("usage")
            if usage:
                answer.prompt_tokens, answer.output_tokens = usage["prompt_tokens"], usage["completion_tokens"]
            choices = chunk.get("choices") or ()
            for choice in choices:
                answer.token_ids += choice.get("token_ids") or ()
            text = "".join(map(_text, choices))
            if text:
                parts.append(text)
        if len(parts) > known:
            _take_times(answer, len(parts) - known, now, None if not known else last)
            last = now
    if not parts:
        # Tokens without a text of their own, such as special ones: all that can be told is when they ended.
        last = time.perf_counter()
        answer.ttft = last - answer.start
    answer.text = "".join(parts)
    answer.latency = last - answer.start
    answer.output_tokens = answer.output_tokens or len(parts)
    if not ended:
        answer.error = "the stream ended before [DONE]"
    elif not answer.output_tokens:
        answer.error = "the stream brought no tokens"


def _take_times(answer: LoadResult, count: int, now: float, last: float | None) -> None:
    """Note that `count` chunks were read `now`; the ones before them were read at `last`."""
    if last is not None:
        answer.itls += [(now - last) / count] * count
    else:
        answer.ttft = now - answer.start
        answer.itls += [0.0] * (count - 1)


def _text(choice: Mapping[str, Any]) -> str:
    delta = choice.get("delta")
    found = choice.get("text") if delta is None else delta.get("content") or delta.get("reasoning_content")
    return found or ""
