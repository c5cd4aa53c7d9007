"""A transcription as events: its text, segment by segment."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing

import msgspec

from jaxllm.serving.http.body.base import Answer
from jaxllm.serving.http.stream import DONE, Events
from jaxllm.serving.openai.audio.answers import token_usage
from jaxllm.serving.openai.protocol.audio import TranscriptDelta, TranscriptDone
from jaxllm.serving.transcription.transcriber import Progress, Spoken, joined


class TranscriptStream(Events):
    """The text of a sound as it is understood; when the client leaves, nothing goes on."""

    def __init__(
        self,
        progress: Progress,
        segments: AsyncGenerator[Spoken, None],
        held: AsyncExitStack,
        request_id: str,
        *,
        keep_alive: float,
    ) -> None:
        """`held` is closed at the end."""
        super().__init__(request_id, keep_alive=keep_alive)
        self._progress, self._segments, self._held = progress, segments, held

    async def _events(self) -> AsyncGenerator[bytes, None]:
        found, given = list[Spoken](), ""
        async with aclosing(self._segments) as segments:
            async for each in segments:
                found.append(each)
                # Spaces at the end may be followed by text, or not.
                text = joined(found)
                if len(text) > len(given):
                    yield _event(TranscriptDelta(delta=text[len(given) :]))
                    given = text
        yield _event(TranscriptDone(text=given, usage=token_usage(self._progress))) + DONE

    async def _close(self) -> None:
        await self._segments.aclose()
        await self._held.aclose()


def _event(body: Answer) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"
