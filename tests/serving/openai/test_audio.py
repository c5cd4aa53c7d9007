"""Transcriptions as OpenAI's interface has them: fields and formats."""

import json
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
from openai.types.audio import transcription_create_params, translation_create_params

from jaxllm.errors import QueueFullError, QuotaError
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.serving.http.identity import Identity
from jaxllm.serving.http.middleware.access_log import ENGINE_REQUESTS
from jaxllm.serving.openai.audio import routes
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


class Results:
    """What the engine answers about one window."""

    def __init__(self, request: Any) -> None:
        self.request = request
        self.closed = False

    async def __aiter__(self) -> Any:
        yield SimpleNamespace(outputs=[SimpleNamespace(token_ids=[5], logprobs=[{5: SimpleNamespace(logprob=-1.0)}])])

    def close(self) -> None:
        self.closed = True


async def test_windows_wait_where_the_first_was_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a sound on its way, no window may fail because others of the same owner run."""
    answers: list[Any] = [None, QuotaError("busy", 0.01), QueueFullError("full", 0.01), None]
    made = []

    async def prepare(prompts: list[Any], params: Any, names: list[str], *, stream: bool) -> list[Any]:
        assert stream
        assert prompts[0]["multi_modal_data"]["audio"] is features
        return [SimpleNamespace(name=names[0], children=[SimpleNamespace(media="features")])]

    def submit(request: Any, server: Any, requests: list[Any]) -> list[Any]:
        answer = answers.pop(0)
        if answer is not None:
            raise answer
        made.append(Results(requests[0]))
        return made[-1:]

    monkeypatch.setattr(routes, "submit", submit)
    features = np.zeros((2, 3), np.float32)
    server: Any = SimpleNamespace(llm=SimpleNamespace(prepare=prepare), accepting=True)
    identity = Identity("transcription-1", ["transcription-1-abcdef12"], 0, "m")

    async def ask(listener: routes.Listener) -> list[Any]:
        return [each async for each in listener([1], features, SamplingParams())]

    http: Any = SimpleNamespace(scope={})
    listener = routes.Listener(http, server, identity, stream=True)
    for _ in range(2):
        (heard,) = await ask(listener)
        assert (heard.token_ids, heard.logprobs) == ([5], [{5: -1.0}])
    assert answers == []
    assert all(each.closed and each.request.children[0].media is None for each in made)
    assert len(http.scope[ENGINE_REQUESTS]) == 2
    # Where nothing is taken, or the server shuts down, the client is told.
    for other in (routes.Listener(http, server, identity, stream=True), listener):
        answers.append(QueueFullError("full", 0.01))
        with pytest.raises(QueueFullError):
            await ask(other)
        server.accepting = False
