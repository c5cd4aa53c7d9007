"""Transcriptions by a server process, asked for by OpenAI's client."""

import io
import re
import runpy
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from jaxllm.serving.media.audio.resample import RATE, Samples
from tests.conftest import ROOT
from tests.e2e.images.test_hostile_images import total_memory
from tests.e2e.sound.transcribing import LENGTH, Reference, clip, save_transcribing_model
from tests.serving.media.audio import hostile
from tests.serving.media.audio.sounds import file_of
from tests.serving.server_process import ServerProcess, running

MOST_BYTES = 400_000
ENOUGH = 200 << 20
"""Bytes of memory that files of this size may take."""
FLAGS = (
    *("--host", "127.0.0.1", "--port", "0", "--optimization-level", "0", "--strict-compilation"),
    *("--max-num-seqs", "4", "--max-num-batched-tokens", "16", "--max-model-len", str(LENGTH)),
    *("--served-model-name", "hearing", "--max-audio-bytes", str(MOST_BYTES), "--max-audio-seconds", "20"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("transcribing")
    save_transcribing_model(found)
    return found


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running(tmp_path_factory.mktemp("log") / "log", str(folder), *FLAGS) as found:
        yield found


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def reference(folder: Path) -> Reference:
    return Reference(folder)


def upload(samples: Samples, **options: Any) -> Any:
    return ("sound.wav", io.BytesIO(file_of(samples, **options)))


def long_sound() -> Samples:
    """Some sounds with pauses between them, and a stretch without any that is longer than a window."""
    pause = np.zeros(RATE // 2, np.float32)
    return np.concatenate([part for seed in range(4) for part in (clip(seed, 1.2), pause)] + [clip(9, 5.0)])


@pytest.mark.parametrize("seed", range(3))
def test_a_window_is_understood_as_by_transformers(client: openai.OpenAI, reference: Reference, seed: int) -> None:
    sound = clip(seed, 1.9)
    language = reference.language(sound)
    tokens = reference.window(sound, language)
    found = client.audio.transcriptions.create(
        model="hearing", file=upload(sound), response_format="verbose_json", timestamp_granularities=["segment"]
    )
    assert found.language == {"en": "english", "de": "german"}[language]
    assert found.duration == pytest.approx(1.9)
    assert found.segments
    first = next(each for each in found.segments)
    assert first.tokens == tokens[: len(first.tokens)]
    assert 0 <= first.start <= first.end <= 1.9
    assert first.avg_logprob < 0 < first.no_speech_prob < 1


def test_the_example(
    server: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "speech.wav").write_bytes(file_of(clip(0, 1.9)))
    monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
    monkeypatch.setattr(sys, "argv", ["client.py", str(tmp_path / "speech.wav")])
    runpy.run_path(str(ROOT / "docs" / "examples" / "openai_transcription_client.py"), run_name="__main__")
    *segments, streamed = capsys.readouterr().out.splitlines()
    assert segments
    assert all(" s to " in each for each in segments)
    assert len(streamed) > len("streamed: ")


def test_all_formats_have_the_same_text(client: openai.OpenAI) -> None:
    sound = long_sound()

    def ask(form: Any) -> Any:
        return client.audio.transcriptions.create(
            model="hearing", file=upload(sound), language="en", response_format=form
        )

    plain, verbose, text, srt, vtt = (ask(form) for form in ("json", "verbose_json", "text", "srt", "vtt"))
    assert plain.text
    assert verbose.text == plain.text
    assert "".join(each.text for each in verbose.segments).strip() == plain.text
    assert text == f"{plain.text}\n"
    assert plain.usage.type == "duration"
    assert plain.usage.seconds == int(np.ceil(len(sound) / RATE))
    times = [(each.start, each.end) for each in verbose.segments]
    assert times == sorted(times)
    assert times[-1][1] <= len(sound) / RATE + 0.01
    clock = r"\d\d:\d\d:\d\d"
    assert len(re.findall(rf"{clock},\d{{3}} --> {clock},\d{{3}}", srt)) == len(times)
    assert vtt.startswith("WEBVTT\n\n")
    assert len(re.findall(rf"{clock}\.\d{{3}} --> {clock}\.\d{{3}}", vtt)) == len(times)


def test_a_stream_has_the_text_bit_by_bit(client: openai.OpenAI) -> None:
    sound = long_sound()
    whole = client.audio.transcriptions.create(model="hearing", file=upload(sound), language="en")
    events = list(client.audio.transcriptions.create(model="hearing", file=upload(sound), language="en", stream=True))
    assert {each.type for each in events[:-1]} == {"transcript.text.delta"}
    assert len(events) > 3
    done: Any = events[-1]
    assert done.type == "transcript.text.done"
    assert "".join(each.delta for each in events[:-1]) == done.text == whole.text  # type: ignore[union-attr]
    assert done.usage.total_tokens == done.usage.input_tokens + done.usage.output_tokens > 0


def test_the_same_sound_in_other_files(client: openai.OpenAI) -> None:
    sound = clip(3, 1.5)

    def ask(data: bytes) -> str:
        file = ("sound", io.BytesIO(data))
        return client.audio.transcriptions.create(model="hearing", file=file, language="de").text

    wanted = ask(file_of(sound))
    assert ask(file_of(sound, form="FLAC")) == wanted
    assert ask(file_of(np.stack([sound, sound], axis=1))) == wanted


def test_translations(client: openai.OpenAI, reference: Reference) -> None:
    sound = clip(5, 1.9)
    found: Any = client.audio.translations.create(
        model="hearing", file=upload(sound), response_format="verbose_json", extra_body={"language": "de"}
    )
    assert found.model_extra["task"] == "translate"
    (first, *_) = found.segments
    assert first.tokens == reference.window(sound, "de", "translate")[: len(first.tokens)]
    assert client.audio.translations.create(model="hearing", file=upload(sound)).text


def test_parameters_change_the_text(client: openai.OpenAI) -> None:
    sound = clip(6, 1.9)

    def ask(**more: Any) -> str:
        return client.audio.transcriptions.create(model="hearing", file=upload(sound), language="en", **more).text

    greedy = ask()
    drawn = [ask(temperature=1.0, extra_body={"seed": seed}) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1]
    assert len({greedy, *drawn}) == 3
    assert ask(prompt="The cat <|endoftext|> and ελληνικά") != greedy
    assert len(ask(extra_body={"max_completion_tokens": 5})) < len(greedy)


@pytest.mark.parametrize("stream", [False, True])
def test_the_time_of_a_transcription_is_over(server: ServerProcess, stream: bool) -> None:
    """While the engine does not answer about one of several windows; whoever comes next is understood."""
    engine, url = server.engine(), f"{server.url}/v1/audio/transcriptions"
    form: dict[str, Any] = {"model": "hearing", "language": "en", **({"stream": "true"} if stream else {})}

    def ask(**more: str) -> httpx.Response:
        return httpx.post(url, files={"file": ("sound", file_of(long_sound()))}, data={**form, **more}, timeout=60)

    before = timeouts(server)
    engine.suspend()
    try:
        late = ask(timeout="0.5")
    finally:
        engine.resume()
    assert '"code":"request_timeout"' in late.text
    assert "was not answered within 0.5 s" in late.text
    assert stream or late.status_code == 504
    assert ask().status_code == 200
    assert timeouts(server) == before + 1


def test_the_engine_is_killed_while_it_listens(server: ServerProcess, client: openai.OpenAI) -> None:
    """Every window is heard by the next one as by the first: each stream has the text that it has undisturbed."""
    sounds = [long_sound(), np.concatenate([clip(seed, 1.5) for seed in range(20, 24)])]

    def listen(samples: Samples, killing: bool) -> str:
        events = client.audio.transcriptions.create(
            model="hearing", file=upload(samples), language="en", temperature=0, stream=True, timeout=120
        )
        text = ""
        for event in events:
            text += event.delta if event.type == "transcript.text.delta" else ""
            if killing:
                server.engine().kill()
                killing = False
        return text

    alone = [listen(samples, killing=False) for samples in sounds]
    restarts = resumed(server)
    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(listen, sounds[index % 2], killing=index == 0) for index in range(4)]
        assert [each.result() for each in asked] == alone * 2
    assert resumed(server) > restarts


def resumed(server: ServerProcess) -> float:
    """Requests to the engine that went on in another one."""
    text = httpx.get(f"{server.url}/metrics").text
    return sum(map(float, re.findall(r"^jaxllm:requests_resumed_total{.*} (\S+)", text, re.MULTILINE)))


def timeouts(server: ServerProcess) -> float:
    """Requests whose time was over."""
    return sum(map(float, re.findall(r"request_timeouts_total{.*} (\S+)", httpx.get(f"{server.url}/metrics").text)))


def test_who_leaves_is_not_listened_to_any_longer(server: ServerProcess) -> None:
    url, form = f"{server.url}/v1/audio/transcriptions", {"language": "en", "stream": "true", "model": "hearing"}

    def tokens_of(read: Callable[[httpx.Response], object]) -> int:
        before, files = generated(server), {"file": ("sound", file_of(long_sound()))}
        with httpx.stream("POST", url, files=files, data=form, timeout=60) as response:
            read(response)
        time.sleep(2)
        return generated(server) - before

    assert 0 < tokens_of(lambda response: next(response.iter_lines())) < tokens_of(httpx.Response.read)


def generated(server: ServerProcess) -> int:
    """Tokens that the server has written."""
    text = httpx.get(f"{server.url}/metrics").text
    found = re.search(r"^jaxllm:generation_tokens_total{.*} (\S+)$", text, re.MULTILINE)
    assert found is not None
    return int(float(found[1]))


def test_hostile_files(server: ServerProcess) -> None:
    """A 4xx each, and memory for none of them."""
    files = {
        "nothing": b"",
        "text": b"hello, I am no sound at all",
        "no samples": file_of(np.zeros(0, np.float32)),
        "too long": file_of(np.zeros(21 * 4000, np.float32), 4000),
        "a riff of nothing": b"RIFF\xff\xff\xff\xffWAVEfmt ",
        "too large": file_of(np.zeros(19 * RATE, np.float32)),
        **hostile.broken_files(),
        **hostile.bombs(),
    }
    assert post(server, file_of(clip(1, 0.5))).status_code == 200
    before = total_memory(server)
    for name, data in files.items():
        answer = post(server, data)
        is_large = len(data) > MOST_BYTES
        assert answer.status_code == (413 if is_large else 400), (name, answer.text)
        error = answer.json()["error"]
        assert "--max-audio-bytes" in error["message"] if is_large else error["param"] == "file", (name, error)
        assert len(answer.text) < 1000, name
        assert total_memory(server) - before < ENOUGH, name
    assert post(server, file_of(clip(1, 0.5))).status_code == 200


def post(server: ServerProcess, data: bytes, path: str = "transcriptions", **fields: Any) -> httpx.Response:
    url = f"{server.url}/v1/audio/{path}"
    return httpx.post(url, files={"file": ("sound", data)}, data={"model": "hearing", **fields}, timeout=120)


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"language": "klingon"}, "language", "ISO 639-1"),
        ({"language": "fr"}, "language", "that this model knows"),
        ({"response_format": "xml"}, "response_format", "Invalid enum value"),
        ({"response_format": "srt", "stream": "true"}, "response_format", "cannot be combined with stream"),
        ({"timestamp_granularities[]": "word", "response_format": "verbose_json"}, "timestamp_granularities", "words"),
        ({"timestamp_granularities[]": "segment"}, "timestamp_granularities", "verbose_json"),
        ({"timestamp_granularities": "word"}, "timestamp_granularities", "words"),
        ({"temperature": "hot"}, "temperature", "expected a number"),
        ({"temperature": "-1"}, "temperature", "temperature"),
        ({"top_p": "7"}, "top_p", "top_p"),
        ({"max_completion_tokens": "0"}, "max_completion_tokens", "at least 1"),
        ({"prompt": "x" * 20_000}, "prompt", "length"),
        ({"to_language": "fr"}, "to_language", "English"),
        ({"langauge": "en"}, "langauge", "did you mean"),
    ],
)
def test_wrong_fields(server: ServerProcess, fields: dict[str, Any], param: str, words: str) -> None:
    answer = post(server, file_of(clip(1, 0.5)), **fields)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert words in error["message"]


def test_other_mistakes(server: ServerProcess) -> None:
    url = f"{server.url}/v1/audio/transcriptions"
    assert httpx.post(url, json={"model": "hearing"}).status_code == 415
    assert httpx.post(url, files={"model": (None, "hearing")}).status_code == 400
    unknown = post(server, file_of(clip(1, 0.5)), model="other")
    assert unknown.status_code == 404
    for path, body in (("completions", {"prompt": "a"}), ("embeddings", {"input": "a"})):
        answer = httpx.post(f"{server.url}/v1/{path}", json=body)
        assert answer.status_code == 400
        assert "/v1/audio/transcriptions" in answer.json()["error"]["message"]


def test_what_is_ignored_is_named(server: ServerProcess) -> None:
    answer = post(server, file_of(clip(1, 0.5)), **{"include[]": "logprobs", "language": "en", "wobble": "1"})
    assert answer.status_code == 200, answer.text
    assert {"include", "wobble"} <= set(re.split(", *", answer.headers["x-ignored-fields"]))
