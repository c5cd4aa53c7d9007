"""`Transcriber`: sound to segments of text, by a model that hears windows of it."""

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.serving.llm.async_llm import RunText
from jaxllm.serving.media.audio.resample import RATE, Samples
from jaxllm.serving.text.tokenizer import Tokenizer, check_text
from jaxllm.serving.transcription.model import Task, TranscriptionModel
from jaxllm.serving.transcription.segments import Segment, closed_segments, compression_ratio, read_window
from jaxllm.serving.transcription.windows import Stretch, quietest, stretches

AT_A_TIME: Final = 16
"""Stretches of a sound that are heard at the same time."""
_LAST_PART: Final = 5
"""Seconds of a window, within which it is cut where the model has no timestamps and the sound no pause."""


@dataclass(frozen=True)
class Heard:
    """More of what a model writes about a window; `logprobs` where they were asked for."""

    token_ids: list[int]
    logprobs: Sequence[dict[int, float]] | None = None
    """By token, that of the one that was chosen first."""


class Hear(Protocol):
    """Asks a model about a window of sound."""

    def __call__(self, prompt: list[int], features: Samples, params: SamplingParams) -> AsyncGenerator[Heard, None]:
        """What it writes after the `prompt`, bit by bit; `features` are float32 [bins, frames]."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a request wants of a sound. `params` are for each window; what the rules need is added."""

    task: Task = "transcribe"
    language: str | None = None
    """Its code; None: it is found out from the first window."""
    languages: tuple[str, ...] = ()
    """Codes of those that it may be then; none: all that the model knows."""
    before: str = ""
    """Text that may precede the sound: it tells how names are spelled."""
    params: SamplingParams = field(default_factory=lambda: SamplingParams(temperature=0.0, max_tokens=None))
    measures: bool = False
    """Whether `no_speech_prob` and `mean_logprob` of segments are wanted."""


@dataclass(frozen=True)
class Spoken:
    """A segment with its text."""

    start: float
    end: float
    text: str
    token_ids: tuple[int, ...]
    mean_logprob: float
    no_speech_prob: float
    window_start: float
    """Seconds, where the window begins that the model heard."""

    @property
    def compression_ratio(self) -> float:
        """See `segments.compression_ratio`."""
        return compression_ratio(self.text)


@dataclass
class Progress:
    """What is known of a transcription, besides its segments."""

    duration: float
    language: str = ""
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_windows: int = 0


class Transcriber:
    """Transcribes one sound after another, or several at once."""

    def __init__(self, model: TranscriptionModel, tokenizer: Tokenizer, hear: Hear, run: RunText) -> None:
        """`run` runs what takes a while in a thread."""
        self._model, self._tokenizer, self._hear, self._run = model, tokenizer, hear, run

    def transcribe(
        self, samples: Samples, wanted: Wanted, *, at_a_time: int = AT_A_TIME
    ) -> tuple[Progress, AsyncGenerator[Spoken, None]]:
        """The segments of a sound, float32 [samples] of 16 kHz, in their order and as they come.

        Raises what asking the model raises; then, and when the reader leaves, nothing goes on.
        """
        progress = Progress(duration=len(samples) / RATE)
        return progress, _Transcription(self, samples, wanted, progress, at_a_time).segments()

    def text_tokens(self, text: str) -> list[int]:
        """The tokens of text that precedes the sound; names of control tokens in it are left out.

        Raises `RequestError` for text that is none.
        """
        if not text.strip():
            return []
        check_text(text, "prompt")
        (found,) = self._tokenizer.encode([f" {text.strip()}"], add_special_tokens=False)
        return [token for token in found if not self._is_control(token)]

    def text_of(self, token_ids: Sequence[int]) -> str:
        """The text in tokens, without timestamps and control tokens."""
        return self._tokenizer.decode([token for token in token_ids if not self._is_control(token)])

    def _is_control(self, token: int) -> bool:
        first = self._model.first_time
        return token in self._tokenizer.special_ids or (first is not None and token >= first)

    async def features(self, samples: Samples) -> Samples:
        """Of a window."""
        return await self._run(self._model.features, samples)

    async def cut(self, samples: Samples) -> list[Stretch]:
        """See `stretches`."""
        return await self._run(stretches, samples, self._model.features.num_samples)

    def listen(self, prompt: list[int], features: Samples, params: SamplingParams) -> AsyncGenerator[Heard, None]:
        """See `Hear`."""
        return self._hear(prompt, features, params)

    @property
    def model(self) -> TranscriptionModel:
        """The model that is asked."""
        return self._model


class _Transcription:
    """One sound on its way to text."""

    def __init__(
        self, owner: Transcriber, samples: Samples, wanted: Wanted, progress: Progress, at_a_time: int
    ) -> None:
        self._owner, self._model, self._samples, self._wanted = owner, owner.model, samples, wanted
        self._progress, self._places = progress, asyncio.Semaphore(at_a_time)
        self._before = owner.text_tokens(wanted.before)

    async def segments(self) -> AsyncGenerator[Spoken, None]:
        """See `Transcriber.transcribe`."""
        parts = await self._owner.cut(self._samples)
        first_opening = None
        self._progress.language = self._wanted.language or ""
        if not self._progress.language:
            features = await self._owner.features(self._samples[: self._model.features.num_samples])
            first_opening = await self._opening(features)
            self._progress.language = first_opening[0]
        queues = [asyncio.Queue[Spoken | Exception | None]() for _ in parts]
        tasks = [asyncio.ensure_future(self._fill(queue, part)) for queue, part in zip(queues, parts, strict=True)]
        try:
            for queue in queues:
                while (found := await queue.get()) is not None:
                    if isinstance(found, Exception):
                        raise found
                    yield found
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _fill(self, queue: "asyncio.Queue[Spoken | Exception | None]", part: Stretch) -> None:
        """Put the segments of a stretch, and then the end or an error, into a queue."""
        end: Exception | None = None
        try:
            async with self._places:
                async for spoken in self._stretch(part):
                    queue.put_nowait(spoken)
        except Exception as error:  # noqa: BLE001  (the reader of the queue raises it)
            end = error
        queue.put_nowait(end)

    async def _stretch(self, part: Stretch) -> AsyncIterator[Spoken]:
        """The segments of a stretch, window by window; each begins where the one before is understood."""
        place, size = part.start, self._model.features.num_samples
        while place < part.stop:
            stop = min(part.stop, place + size)
            if self._model.first_time is None and stop < part.stop:
                stop = place + quietest(self._samples[place:stop], size - _LAST_PART * RATE)
            covered = 0.0
            async with aclosing(self._window(place, stop, is_last=stop == part.stop)) as window:
                async for found in window:
                    if isinstance(found, float):
                        covered = found
                    else:
                        yield found
            place = stop if covered >= (stop - place) / RATE else place + math.ceil(covered * RATE)

    async def _window(self, start: int, stop: int, *, is_last: bool) -> AsyncGenerator[Spoken | float, None]:
        """The segments of a window as they are closed, and at last how many seconds are covered."""
        features = await self._owner.features(self._samples[start:stop])
        silence = (await self._opening(features))[1] if self._wanted.measures else 0.0
        begin, seconds = start / RATE, (stop - start) / RATE
        prompt = self._model.prompt(self._progress.language, self._wanted.task, self._before)
        tokens, scores, given = list[int](), list[float](), 0

        def spoken(segments: Sequence[Segment]) -> list[Spoken]:
            found = [self._spoken(each, begin, silence) for each in segments]
            return [each for each in found if each.text.strip()]

        async with aclosing(self._owner.listen(prompt, features, self._params(prompt))) as answers:
            async for heard in answers:
                tokens += heard.token_ids
                scores += [next(iter(each.values())) for each in heard.logprobs or ()]
                count = closed_segments(self._model, tokens)
                closed = read_window(
                    self._model, tokens[:count], scores[:count], start=begin, seconds=seconds, is_last=True
                )
                for each in spoken(closed.segments[given:]):
                    yield each
                given = max(given, len(closed.segments))
        self._count(prompt, tokens)
        found = read_window(self._model, tokens, scores or None, start=begin, seconds=seconds, is_last=is_last)
        for each in spoken(found.segments[given:]):
            yield each
        yield found.covered

    async def _opening(self, features: Samples) -> tuple[str, float]:
        """The language of a window, and how likely it has no speech: what the model says before the text."""
        model = self._model
        asked = [] if model.no_speech is None else [model.no_speech]
        possible = self._wanted.languages or model.languages
        params = SamplingParams(
            temperature=0.0,
            max_tokens=1,
            detokenize=False,
            allowed_token_ids=[token for code, token in model.languages.items() if code in possible] or None,
            logprob_token_ids=asked or None,
            logprobs=0 if asked else None,
        )
        prompt = model.opening(self._before)
        tokens, silence = list[int](), 0.0
        async with aclosing(self._owner.listen(prompt, features, params)) as answers:
            async for heard in answers:
                tokens += heard.token_ids
                for each in heard.logprobs or ():
                    silence = math.exp(each.get(asked[0], -math.inf)) if asked else 0.0
        self._count(prompt, tokens)
        codes = {token: code for code, token in model.languages.items()}
        return codes.get(tokens[0], "en") if tokens else "en", silence

    def _params(self, prompt: Sequence[int]) -> SamplingParams:
        room, asked = self._model.max_length - len(prompt), self._wanted.params.max_tokens
        return msgspec.structs.replace(
            self._wanted.params,
            max_tokens=room if asked is None else min(room, asked),
            logprobs=0 if self._wanted.measures else None,
            detokenize=False,
            extra_args=self._model.extra_args(),
        )

    def _spoken(self, segment: Segment, window_start: float, silence: float) -> Spoken:
        return Spoken(
            segment.start,
            segment.end,
            self._owner.text_of(segment.token_ids),
            segment.token_ids,
            segment.mean_logprob,
            silence,
            window_start,
        )

    def _count(self, prompt: Sequence[int], tokens: Sequence[int]) -> None:
        self._progress.num_prompt_tokens += len(prompt)
        self._progress.num_output_tokens += len(tokens)
        self._progress.num_windows += 1


def joined(segments: Sequence[Spoken], done: Callable[[str], str] = str.strip) -> str:
    """The text of segments."""
    return done("".join(each.text for each in segments))
