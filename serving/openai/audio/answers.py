"""Segments of sound as responses, in each format that OpenAI's interface has."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from starlette.responses import Response

from jaxllm.serving.http.responses import json_response
from jaxllm.serving.openai.protocol.audio import (
    DurationUsage,
    ResponseFormat,
    TokenUsage,
    Transcription,
    TranscriptionSegment,
    VerboseTranscription,
)
from jaxllm.serving.transcription.languages import NAMES
from jaxllm.serving.transcription.transcriber import Progress, Spoken, Wanted, joined

_HUNDREDTHS: Final = 100


def answer(kind: ResponseFormat, segments: Sequence[Spoken], progress: Progress, wanted: Wanted) -> Response:
    """The response; the text of all formats is that of the same segments."""
    if kind == "json":
        return json_response(Transcription(text=joined(segments), usage=_duration(progress)))
    if kind == "verbose_json":
        return json_response(_verbose(segments, progress, wanted))
    return Response(TEXTS[kind](segments), media_type="text/plain; charset=utf-8")


def token_usage(progress: Progress) -> TokenUsage:
    """The tokens of a sound."""
    given, made = progress.num_prompt_tokens, progress.num_output_tokens
    return TokenUsage(input_tokens=given, output_tokens=made, total_tokens=given + made)


def _duration(progress: Progress) -> DurationUsage:
    return DurationUsage(seconds=math.ceil(progress.duration))


def _verbose(segments: Sequence[Spoken], progress: Progress, wanted: Wanted) -> VerboseTranscription:
    return VerboseTranscription(
        task=wanted.task,
        language=NAMES[progress.language],
        duration=progress.duration,
        text=joined(segments),
        segments=[_segment(index, each, wanted.params.temperature) for index, each in enumerate(segments)],
        usage=_duration(progress),
    )


def _segment(index: int, spoken: Spoken, temperature: float) -> TranscriptionSegment:
    return TranscriptionSegment(
        id=index,
        seek=round(spoken.window_start * _HUNDREDTHS),
        start=round(spoken.start, 3),
        end=round(spoken.end, 3),
        text=spoken.text,
        tokens=list(spoken.token_ids),
        temperature=temperature,
        avg_logprob=spoken.mean_logprob,
        compression_ratio=spoken.compression_ratio,
        no_speech_prob=spoken.no_speech_prob,
    )


def _text(segments: Sequence[Spoken]) -> str:
    return f"{joined(segments)}\n"


def _srt(segments: Sequence[Spoken]) -> str:
    return "".join(f"{number}\n{_cue(each, ',')}\n" for number, each in enumerate(segments, 1))


def _vtt(segments: Sequence[Spoken]) -> str:
    return "WEBVTT\n\n" + "".join(f"{_cue(each, '.')}\n" for each in segments)


TEXTS: Final[Mapping[ResponseFormat, Callable[[Sequence[Spoken]], str]]] = {"text": _text, "srt": _srt, "vtt": _vtt}
"""Formats that are no JSON."""


def _cue(spoken: Spoken, mark: str) -> str:
    """Times and text; an arrow in the text would be read as that between times."""
    text = " ".join(spoken.text.split()).replace("-->", "->")
    return f"{_clock(spoken.start, mark)} --> {_clock(spoken.end, mark)}\n{text}\n"


def _clock(seconds: float, mark: str) -> str:
    whole, thousandths = divmod(round(seconds * 1000), 1000)
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}{mark}{thousandths:03d}"
