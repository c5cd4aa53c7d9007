"""Transcriptions as OpenAI's interface has them: fields and formats."""

import json
from typing import Any, get_args, get_type_hints

import pytest
from openai.types.audio import transcription_create_params, translation_create_params

from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.serving.openai.audio.answers import answer, token_usage
from jaxllm.serving.openai.audio.form import wanted_of
from jaxllm.serving.openai.protocol.audio import ResponseFormat, TranscriptionRequest, TranslationRequest
from jaxllm.serving.transcription.transcriber import Progress, Spoken, Wanted
from tests.serving.transcription.spoken_numbers import model

SEGMENTS = [
    Spoken(0.0, 2.5, " It was --> here.", (60, 1, 2, 185), -0.25, 0.5, 0.0),
    Spoken(3661.25, 3662.0, "\nThen\n\nit left. ", (61, 3, 186), -1.0, 0.25, 3660.0),
]
PROGRESS = Progress(duration=3662.2, language="yue", num_prompt_tokens=7, num_output_tokens=9)


def body_of(kind: ResponseFormat) -> str:
    return bytes(answer(kind, SEGMENTS, PROGRESS, Wanted(params=SamplingParams(temperature=0.5))).body).decode()


def test_json_and_text() -> None:
    text = "It was --> here.\nThen\n\nit left."
    assert json.loads(body_of("json")) == {"text": text, "usage": {"type": "duration", "seconds": 3663}}
    assert body_of("text") == f"{text}\n"
    found = json.loads(body_of("verbose_json"))
    first, second = found.pop("segments")
    assert found == {
        "task": "transcribe",
        "language": "cantonese",
        "duration": 3662.2,
        "text": text,
        "usage": {"type": "duration", "seconds": 3663},
    }
    assert first.pop("compression_ratio") < 1
    assert first == {
        "id": 0, "seek": 0, "start": 0.0, "end": 2.5, "text": " It was --> here.", "tokens": [60, 1, 2, 185],
        "temperature": 0.5, "avg_logprob": -0.25, "no_speech_prob": 0.5,
    }  # fmt: skip
    assert (second["id"], second["seek"]) == (1, 366000)
    usage = token_usage(PROGRESS)
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (7, 9, 16)


def test_subtitles() -> None:
    assert body_of("srt") == (
        "1\n00:00:00,000 --> 00:00:02,500\nIt was -> here.\n\n2\n01:01:01,250 --> 01:01:02,000\nThen it left.\n\n"
    )
    assert body_of("vtt") == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:02.500\nIt was -> here.\n\n01:01:01.250 --> 01:01:02.000\nThen it left.\n\n"
    )


def test_nothing_said() -> None:
    for kind, wanted in (("text", "\n"), ("srt", ""), ("vtt", "WEBVTT\n\n")):
        found = answer(kind, [], PROGRESS, Wanted())  # type: ignore[arg-type]
        assert bytes(found.body).decode() == wanted


@pytest.mark.parametrize(
    ("kind", "theirs"),
    [
        (TranscriptionRequest, transcription_create_params.TranscriptionCreateParamsNonStreaming),
        (TranscriptionRequest, transcription_create_params.TranscriptionCreateParamsStreaming),
        (TranslationRequest, translation_create_params.TranslationCreateParams),
    ],
)
def test_all_official_fields_are_known(kind: Any, theirs: Any) -> None:
    assert set(get_type_hints(theirs)) - {"file"} <= set(kind.__struct_fields__)
    assert set(get_args(ResponseFormat)) == {"json", "text", "srt", "verbose_json", "vtt"}


def test_what_fields_mean() -> None:
    body = TranscriptionRequest(
        languages=["German", "en"], keywords=["Ada", "Grace"], prompt="Hi.", temperature=0.5, seed=3,
        max_completion_tokens=9, response_format="verbose_json",
    )  # fmt: skip
    wanted = wanted_of(body, model(6), "translate")
    assert (wanted.language, wanted.languages, wanted.task) == (None, ("de", "en"), "translate")
    assert wanted.before == "Ada, Grace. Hi."
    assert wanted.measures
    params = wanted.params
    assert (params.temperature, params.seed, params.max_tokens) == (0.5, 3, 9)
    plain = wanted_of(TranscriptionRequest(), model(6), "transcribe")
    assert (plain.before, plain.params.temperature, plain.params.max_tokens) == ("", 0.0, None)
