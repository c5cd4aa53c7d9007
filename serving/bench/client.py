"""Sends the requests of a load test and times their answers."""

import ssl
import time
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from jaxllm.serving.bench.datasets.request import LoadRequest

ENDPOINTS = {
    "openai": "/v1/completions",
    "openai-chat": "/v1/chat/completions",
    "openai-embeddings": "/v1/embeddings",
}
"""Where each backend is asked, unless somebody knows better."""

_MAX_ERROR = 300


@dataclass(slots=True)
class LoadResult:
    """The outcome of one request. Times in seconds; `start` is of the monotonic clock, `ttft` and `latency` from there.

    `itls` are the gaps between the chunks that brought text. Chunks that were read at once, as a busy server or client
    makes them, share the gap before them: only their sum was seen. `token_ids` are there if the server was asked for
    them (vLLM's `return_token_ids`). `queue_time` is how long the request waited here after it was due. `error` is
    empty when all went well.
    """

    start: float = 0.0
    ttft: float = 0.0
    latency: float = 0.0
    itls: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    output_tokens: int = 0
    inputs: int = 1
    queue_time: float = 0.0
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    error: str = ""


def backend_of(path: str) -> str:
    """The protocol of an endpoint, known from its path."""
    if path.endswith("/chat/completions"):
        return "openai-chat"
    return "openai-embeddings" if path.endswith("/embeddings") else "openai"


@dataclass(frozen=True, kw_only=True)
class LoadTarget:
    """Where requests go, and what all of them carry. `url` is that of the endpoint; `backend` a key of `ENDPOINTS`."""

    url: str
    model: str
    backend: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    tls: ssl.SSLContext | None = None
    """The authorities that certificates are checked with; None: the usual ones."""
    request_id_prefix: str | None = None

    @property
    def speaks(self) -> str:
        """The backend."""
        return self.backend or backend_of(self.url)

    def body(self, request: LoadRequest) -> dict[str, Any]:
        """The JSON of a request."""
        body: dict[str, Any] = {"model": request.model or self.model}
        prompt = _plain(request.prompt)
        if self.speaks == "openai-embeddings":
            return {**body, "input": prompt, **self.extra}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        if self.speaks == "openai-chat":
            body["messages"] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
            body["max_completion_tokens"] = request.output_tokens
        else:
            body["prompt"] = prompt
            body["max_tokens"] = request.output_tokens
        return {**body, **self.extra}


def _plain(prompt: Any) -> Any:
    """A prompt as JSON has it."""
    if isinstance(prompt, array):
        return prompt.tolist()
    return [_plain(item) for item in prompt] if isinstance(prompt, list) and _holds_arrays(prompt) else prompt


def _holds_arrays(prompt: list[Any]) -> bool:
    return bool(prompt) and isinstance(prompt[0], array)


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


def open_session(target: LoadTarget) -> aiohttp.ClientSession:
    """A session with room for any number of streams; a context manager."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60, ssl=target.tls or True)
    # Hours, since a loaded server may take long, but not for ever.
    timeout = aiohttp.ClientTimeout(total=6 * 3600, connect=None, sock_connect=60)
    return aiohttp.ClientSession(connector=connector, timeout=timeout, headers=target.headers)


async def ask(
    session: aiohttp.ClientSession, target: LoadTarget, request: LoadRequest, index: int | None = None
) -> LoadResult:
    """Send one request and follow its answer; whatever goes wrong is in the result's error.

    `index` is its number, for the header that says which it is.
    """
    answer = LoadResult(prompt_tokens=request.prompt_tokens, inputs=request.inputs)
    body = msgspec.json.encode(target.body(request))
    headers = {"Content-Type": "application/json"}
    if target.request_id_prefix is not None and index is not None:
        headers["X-Request-Id"] = f"{target.request_id_prefix}{index}"
    answer.start = time.perf_counter()
    try:
        async with session.post(target.url, data=body, headers=headers) as response:
            if response.status != 200:
                answer.error = f"status {response.status}: {(await response.text())[:_MAX_ERROR]}"
            elif target.speaks == "openai-embeddings":
                await _read_whole(response, answer)
            else:
                await _read_stream(response, answer)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        answer.error = f"{type(error).__name__}: {error}"[:_MAX_ERROR]
    return answer


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    token_ids: list[int] | None = None

    def found(self) -> str:
        """The text that it brings."""
        delta = self.delta
        found = self.text if delta is None else delta.content or delta.reasoning_content or delta.reasoning
        return found or ""


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = 0


class _Chunk(msgspec.Struct):
    """The fields of a chunk that are read; decoding it to this takes a third of the time of dictionaries."""

    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


async def _read_whole(response: aiohttp.ClientResponse, answer: LoadResult) -> None:
    """Read an answer that is no stream."""
    usage = _decode(await response.read()).usage
    answer.latency = time.perf_counter() - answer.start
    answer.prompt_tokens = answer.prompt_tokens if usage is None else usage.prompt_tokens


async def _read_stream(response: aiohttp.ClientResponse, answer: LoadResult) -> None:
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
            chunk = _decode(event)
            if chunk.error is not None:
                answer.error = str(chunk.error)[:_MAX_ERROR]
                return
            _take_chunk(chunk, answer, parts)
        if len(parts) > known:
            _take_times(answer, len(parts) - known, now, None if not known else last)
            last = now
    if not parts:
        # Tokens without a text of their own, such as special ones: all that can be told is when they ended.
        last = time.perf_counter()
        answer.ttft = last - answer.start
    answer.text = "".join(parts)
    answer.latency = last - answer.start
    answer.output_tokens = answer.output_tokens or len(answer.token_ids) or len(parts)
    if not ended:
        answer.error = "the stream ended before [DONE]"
    elif not answer.output_tokens:
        answer.error = "the stream brought no tokens"


def _take_chunk(chunk: _Chunk, answer: LoadResult, parts: list[str]) -> None:
    """Note what it brings: counts, token ids, and its text as a part."""
    if chunk.usage is not None:
        answer.prompt_tokens, answer.output_tokens = chunk.usage.prompt_tokens, chunk.usage.completion_tokens or 0
    text = ""
    for choice in chunk.choices or ():
        answer.token_ids += choice.token_ids or ()
        text += choice.found()
    if text:
        parts.append(text)


def _take_times(answer: LoadResult, count: int, now: float, last: float | None) -> None:
    """Note that `count` chunks were read `now`; the ones before them were read at `last`."""
    if last is not None:
        answer.itls += [(now - last) / count] * count
    else:
        answer.ttft = now - answer.start
        answer.itls += [0.0] * (count - 1)
