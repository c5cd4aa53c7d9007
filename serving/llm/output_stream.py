"""The results of one request, for a reader that may be slower than the engine."""

import asyncio
from collections.abc import AsyncIterator, Callable

from jaxllm.serving.text.input_processor import TextRequest
from jaxllm.serving.text.outputs import CompletionOutput, RequestOutput

TextSink = Callable[[int, str, list[int]], bool]
"""Takes more text of the sequence of this index, and its tokens; or returns False."""


class OutputStream(AsyncIterator[RequestOutput]):
    """An asynchronous iterator of a request's results, in which those not yet read merge into one.

    A slow reader so gets fewer and larger pieces, and never holds more than the text itself. Belongs to one event loop.

    A reader may give a `sink`. While it waits for the next result, and nothing is left to read, results go to the sink
    and wake nobody: waking a task for every token costs more than the token. The sink takes a result, or returns
    False for one that the reader shall read after all. The iteration ends after a last result that it took.
    With a `text_sink` likewise, outputs that are nothing but text need not even become a result: see `put_text`.
    """

    def __init__(self, request: TextRequest, on_close: Callable[["OutputStream"], None]) -> None:
        """`on_close` is called with this stream if the reader goes before the end."""
        self.request = request
        self.sink: Callable[[RequestOutput], bool] | None = None
        self.text_sink: TextSink | None = None
        self.on_end: Callable[[OutputStream], None] | None = None
        """Called once, when nothing more comes."""
        self._on_close = on_close
        self._waiting: RequestOutput | None = None
        self._error: Exception | None = None
        self._ended = False
        self._arrived = asyncio.Event()
        self._reader_waits = False

    @property
    def has_begun(self) -> bool:
        """Whether a token has come."""
        return self.request.progress.first_token_seconds is not None

    def put(self, output: RequestOutput) -> None:
        """Add results."""
        if self._reader_waits and self.sink is not None and self.sink(output):
            if output.finished:
                self._end()
                self._wake()
            return
        if self._waiting is None:
            self._waiting = output
        else:
            merge(self._waiting, output)
        self._wake()

    def put_text(self, index: int, text: str, token_ids: list[int]) -> bool:
        """Add text, and its tokens, to the sequence of this index. False: `put` must be used for it."""
        return self._reader_waits and self.text_sink is not None and self.text_sink(index, text, token_ids)

    def fail(self, error: Exception) -> None:
        """Let the reader have this error, after the results that wait."""
        self._error = error
        self._wake()

    def _wake(self) -> None:
        self._reader_waits = False
        self._arrived.set()

    def __aiter__(self) -> "OutputStream":
        return self

    async def __anext__(self) -> RequestOutput:
        """Wait for results. Raises `EngineError` when the engine fails."""
        if self._ended:
            raise StopAsyncIteration
        self._reader_waits = not self._arrived.is_set()
        try:
            await self._arrived.wait()
        finally:
            self._reader_waits = False
        if self._ended:
            raise StopAsyncIteration
        output, self._waiting = self._waiting, None
        if output is None:
            error, self._error = self._error, None
            assert error is not None
            self._end()
            try:
                raise error
            finally:
                # Its traceback has this frame: without a circle, all is gone with the request.
                del error
        if output.finished:
            self._end()
        if self._error is None:
            self._arrived.clear()
        return output

    def _end(self) -> None:
        self._ended = True
        if self.on_end is not None:
            self.on_end(self)

    @property
    def closed(self) -> bool:
        """Whether nothing more comes: the end was read or taken, or the reader has left."""
        return self._ended

    def close(self) -> None:
        """The reader goes: what is not finished is aborted."""
        if not self._ended:
            self._end()
            self._on_close(self)


def merge(first: RequestOutput, then: RequestOutput) -> None:
    """Put later results of the same request into `first`."""
    by_index = {completion.index: completion for completion in first.outputs}
    for completion in then.outputs:
        known = by_index.get(completion.index)
        if known is None:
            first.outputs.append(completion)
        else:
            _merge_completion(known, completion)
    first.finished = then.finished
    first.num_cached_tokens = then.num_cached_tokens
    if first.prompt_logprobs is None:
        first.prompt_logprobs = then.prompt_logprobs


def _merge_completion(first: CompletionOutput, then: CompletionOutput) -> None:
    first.text += then.text
    first.token_ids = first.token_ids + then.token_ids
    if then.logprobs is not None:
        first.logprobs = [*(first.logprobs or ()), *then.logprobs]
    first.spec_decode_metrics = then.spec_decode_metrics
    first.cumulative_logprob = then.cumulative_logprob
    first.finish_reason, first.stop_reason = then.finish_reason, then.stop_reason
