"""Sound in chats over HTTP: OpenAI's client sends it, and what is wrong with one is told to its sender alone."""

import base64
import io
import re
import runpy
import sys
import threading
import time
import wave
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from jaxllm.serving.media.audio.resample import RATE, Samples
from tests.conftest import ROOT
from tests.e2e.images.test_hostile_images import total_memory
from tests.e2e.sound.chatting import SECONDS, VOXTRAL, Reference, asking, filled, noise, save
from tests.serving.media.audio import hostile
from tests.serving.media.audio.sounds import file_of
from tests.serving.server_process import ServerProcess, running

KEYS = "clients: [{name: ada, keys: [first]}, {name: bob, keys: [second]}]"
ENOUGH = 400 << 20
"""Bytes that files of a minute may take for a while."""


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, demo_folder: Path) -> Reference:
    folder = tmp_path_factory.mktemp("voxtral")
    save(VOXTRAL, folder, demo_folder)
    (folder / "keys.yaml").write_text(KEYS)
    return Reference(VOXTRAL, folder)


@pytest.fixture(scope="module")
def server(reference: Reference, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    flags = [*("--host", "127.0.0.1", "--port", "0", "--optimization-level", "0", "--strict-compilation")]
    flags += ("--max-model-len", "256", "--max-num-seqs", "4", "--max-num-batched-tokens", "16")
    flags += ("--served-model-name", "hearing", "--limit-mm-per-prompt", '{"audio": 3}', "--max-audio-seconds", "60")
    flags += ("--api-key-file", str(reference.folder / "keys.yaml"))
    with running(tmp_path_factory.mktemp("log") / "log", str(reference.folder), *flags) as made:
        yield made
        assert "Traceback" not in made.log, made.log


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="first", max_retries=0) as made:
        yield made


def test_the_example_sends_a_sound(
    server: ServerProcess, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "first")
    monkeypatch.setattr(sys, "argv", ["client.py", "--chat-type", "audio"])
    program = ROOT / "docs" / "examples" / "openai_chat_completion_client_for_multimodal.py"
    runpy.run_path(str(program), run_name="__main__")
    assert len(capsys.readouterr().out) > len("answer: \n")


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def wav_of(samples: Samples) -> bytes:
    """A file as the standard library writes it."""
    made = io.BytesIO()
    with wave.open(made, "wb") as file:
        file.setparams((1, 2, RATE, len(samples), "NONE", ""))
        file.writeframes(np.round(samples * 32768).astype("<i2").tobytes())
    return made.getvalue()


def heard(data: bytes, form: str = "wav") -> dict[str, Any]:
    """OpenAI's part."""
    return {"type": "input_audio", "input_audio": {"data": base64_of(data), "format": form}}


def ask(server: ServerProcess, *parts: Any, key: str = "first", path: str = "/v1/chat/completions") -> httpx.Response:
    body: dict[str, Any] = {"model": "hearing", "messages": [{"role": "user", "content": list(parts)}]}
    body |= {"max_tokens": 4, "temperature": 0} if path.startswith("/v1") else {}
    return httpx.post(f"{server.url}{path}", json=body, timeout=120, headers={"Authorization": f"Bearer {key}"})


def test_the_openai_client(client: openai.OpenAI, server: ServerProcess, reference: Reference) -> None:
    """Two sounds; one has several windows."""
    sounds, messages = [noise(1, 0.8), noise(2, 2.3 * SECONDS)], asking(None, "And ", None, "what is this?")
    prompt, answer = reference.answer(messages, sounds)
    given = filled(messages, [heard(wav_of(each)) for each in sounds])
    options: Any = {"model": "hearing", "messages": given, "temperature": 0, "max_tokens": 8}
    options |= {"extra_body": {"ignore_eos": True, "return_token_ids": True}}
    whole: Any = client.chat.completions.create(**options)
    assert whole.usage.prompt_tokens == len(prompt)
    assert whole.prompt_token_ids == prompt
    assert whole.choices[0].model_extra["token_ids"] == answer
    chunks: Any = client.chat.completions.create(**options, stream=True)
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == whole.choices[0].message.content
    tokenized = ask(server, *given[0]["content"], path="/tokenize")
    assert tokenized.json()["tokens"] == prompt


def test_responses(client: openai.OpenAI, server: ServerProcess, reference: Reference) -> None:
    sound, asked = noise(8, 0.6), asking(None, "What is this?")
    prompt, answer = reference.answer(asked, [sound])
    content: Any = [heard(wav_of(sound)), {"type": "input_text", "text": "What is this?"}]
    given: Any = [{"role": "user", "content": content}]
    found = client.responses.create(
        model="hearing", input=given, temperature=0, max_output_tokens=8, extra_body={"ignore_eos": True}
    )
    assert found.usage is not None
    assert found.usage.input_tokens == len(prompt)
    assert found.output_text == reference.tokenizer.decode(answer, skip_special_tokens=True)
    content[0]["input_audio"]["data"] = "@@@"
    with pytest.raises(openai.BadRequestError, match="not valid base64") as told:
        client.responses.create(model="hearing", input=given)
    assert told.value.param == "input[0].content[0]"


def test_langchain(server: ServerProcess, reference: Reference) -> None:
    model = ChatOpenAI(base_url=f"{server.url}/v1", api_key=SecretStr("first"), model="hearing", max_retries=0)
    sound = noise(9, 0.7)
    part = {"type": "audio", "base64": base64_of(wav_of(sound)), "mime_type": "audio/wav"}
    asked = HumanMessage(content=[part, {"type": "text", "text": "What is this?"}])
    prompt, answer = reference.answer(asking(None, "What is this?"), [sound])
    found = model.invoke([asked], max_tokens=8, temperature=0, extra_body={"ignore_eos": True})
    assert isinstance(found, AIMessage)
    assert found.usage_metadata is not None
    assert found.usage_metadata["input_tokens"] == len(prompt)
    assert found.content == reference.tokenizer.decode(answer, skip_special_tokens=True)


def test_kinds_of_files(server: ServerProcess) -> None:
    counts = set()
    for form in ("WAV", "FLAC", "MP3", "OGG"):
        answer = ask(server, heard(file_of(noise(3, 0.9), form=form), form.lower()))
        assert answer.status_code == 200, answer.text
        counts.add(answer.json()["usage"]["prompt_tokens"])
    assert len(counts) == 1


def test_a_sound_by_the_name_it_was_given_and_no_others(server: ServerProcess) -> None:
    url = {"url": f"data:audio/wav;base64,{base64_of(wav_of(noise(4, 0.5)))}"}
    first = ask(server, {"type": "audio_url", "audio_url": url, "uuid": "bell"})
    again = ask(server, {"type": "audio_url", "audio_url": None, "uuid": "bell"})
    for answer in (first, again):
        assert answer.status_code == 200, answer.text
    assert again.json()["choices"] == first.json()["choices"]
    other = ask(server, {"type": "audio_url", "audio_url": None, "uuid": "bell"}, key="second")
    assert other.status_code == 400
    assert "no sound with uuid='bell' is kept" in other.json()["error"]["message"]
    # Who sends the same file finds it, and learns nothing by that but what it has.
    assert ask(server, {"type": "audio_url", "audio_url": url}, key="second").status_code == 200


def test_a_sound_is_decoded_and_encoded_once(server: ServerProcess) -> None:
    def counts() -> list[float]:
        text = httpx.get(f"{server.url}/metrics", timeout=60).text
        names = [f"{cache}_cache_{what}_total" for cache in ("mm", "encoder") for what in ("queries", "hits")]
        found = (re.search(rf"^jaxllm:{name}{{.*}} (.*)$", text, re.MULTILINE) for name in names)
        return [float(each[1]) for each in found if each is not None]

    part, seen = heard(wav_of(noise(5, 0.4))), [counts()]
    for _ in range(2):
        assert ask(server, part).status_code == 200
        # The engine tells its counts with its next message.
        deadline = time.monotonic() + 60
        while (now := counts())[2] == seen[-1][2] and time.monotonic() < deadline:
            time.sleep(0.05)
        seen.append(now)
    grown = [[now - before for before, now in zip(*pair, strict=True)] for pair in pairwise(seen)]
    assert grown == [[1, 0, 1, 0], [1, 1, 1, 1]]


def hostile_parts(port: int) -> dict[str, dict[str, Any]]:
    """Parts that strangers send."""
    wav = wav_of(noise(6, 0.5))
    urls = ("http://127.0.0.1:{}/metrics", "http://[::ffff:127.0.0.1]:{}/", "http://169.254.169.254/", "file:///etc/x")
    others: dict[str, Any] = {
        "no base64": {"data": "@@@", "format": "wav"}, "spaces": {"data": f" {base64_of(wav)}"},
        "no data": {"format": "wav"}, "number": {"data": 7}, "no object": "sound",
    }  # fmt: skip
    files = {"text": b"<html>" * 100, **hostile.broken_files(), **hostile.bombs()}
    return {
        **{name: heard(data) for name, data in files.items()},
        **{name: {"type": "input_audio", "input_audio": given} for name, given in others.items()},
        **{url: {"type": "audio_url", "audio_url": {"url": url.format(port)}} for url in urls},
        "in a text": {"type": "text", "text": "a", "input_audio": {"data": "AAAA"}},
        "image": {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        "video": {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}},
    }


def test_neighbours_do_not_notice_hostile_parts(server: ServerProcess) -> None:
    before, ended, told, most = total_memory(server), threading.Event(), set[str](), [0]

    def listen() -> None:
        while not ended.is_set():
            answer = ask(server, heard(wav_of(noise(7, 0.6))), {"type": "text", "text": "Tell a story."}, key="second")
            told.add(answer.json()["choices"][0]["message"]["content"])
            most[0] = max(most[0], total_memory(server))

    neighbour = threading.Thread(target=listen)
    neighbour.start()
    try:
        for name, part in hostile_parts(server.port).items():
            answer = ask(server, part)
            assert answer.status_code == 400, (name, answer.text[:300])
            assert answer.json()["error"]["param"].startswith("messages[0].content[0]"), (name, answer.text)
            assert len(answer.text) < 1000, name
        many = ask(server, *[heard(wav_of(noise(each, 0.1))) for each in range(4)])
        assert many.status_code == 400
        assert "4 sounds: a request may have at most 3" in many.json()["error"]["message"]
    finally:
        ended.set()
        neighbour.join()
    assert len(told) == 1
    assert most[0] - before < ENOUGH
