"""Sound in `LLM.chat`: the tokens of transformers, whatever the family makes of it."""

import base64
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxllm
from jaxllm import LLM, SamplingParams
from jaxllm.errors import RequestError
from jaxllm.serving.media.audio.resample import RATE
from tests.conftest import ROOT
from tests.e2e.sound.chatting import (
    FLAMINGO,
    GLM,
    QWEN,
    SECONDS,
    ULTRAVOX,
    VOXTRAL,
    Reference,
    asking,
    filled,
    noise,
    save,
)
from tests.serving.media.audio.sounds import file_of

PARAMS = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


# A server has Voxtral in `test_server_sound.py`.
FAMILIES = [QWEN, FLAMINGO, GLM, ULTRAVOX, pytest.param(VOXTRAL, marks=pytest.mark.exhaustive)]


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda family: family.name)
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, demo_folder: Path) -> Reference:
    folder = tmp_path_factory.mktemp(request.param.name)
    save(request.param, folder, demo_folder)
    return Reference(request.param, folder)


@pytest.fixture(scope="module")
def llm(reference: Reference, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        made = engine_of(reference)
    yield made
    made.close()


def engine_of(reference: Reference) -> LLM:
    return LLM(
        str(reference.folder), max_model_len=256, max_num_seqs=3, max_num_batched_tokens=8, optimization_level=0,
        strict_compilation=True, limit_mm_per_prompt={"audio": 3}, allowed_local_media_path=str(reference.folder),
    )  # fmt: skip


def url_of(sound: Any) -> str:
    return f"data:audio/wav;base64,{base64.b64encode(file_of(sound)).decode()}"


def test_the_example(llm: LLM, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of an engine of its own it has that of the other tests."""
    monkeypatch.setattr(jaxllm, "LLM", lambda **_: llm)
    monkeypatch.setattr(sys, "argv", ["audio_language.py"])
    runpy.run_path(str(ROOT / "docs" / "examples" / "audio_language.py"), run_name="__main__")
    assert len(capsys.readouterr().out) > len("heard: \n")


def test_conversations(llm: LLM, reference: Reference) -> None:
    """Two sounds around a text, one as a file and one as samples; long sound, where the family takes it; and none."""
    first, second, third = noise(0, 0.7), noise(1, SECONDS), noise(2, 1.25)
    cases: list[tuple[Any, list[Any], list[Any]]] = [
        (
            asking(None, "What is this, and this? ", None),
            [first, second],
            [{"type": "audio_url", "audio_url": {"url": url_of(first)}}, {"type": "audio", "audio": (second, RATE)}],
        ),
        (
            asking("Listen: ", None),
            [third],
            [{"type": "input_audio", "input_audio": {"data": url_of(third).partition(",")[2], "format": "wav"}}],
        ),
        (asking("What do you hear?"), [], []),
    ]
    if reference.family is not QWEN:
        long = noise(3, 2.4 * SECONDS)
        cases.append((asking(None, "Tell me."), [long], [{"type": "audio", "audio": (long, RATE)}]))
    answers = llm.chat([filled(asked, given) for asked, _, given in cases], PARAMS)
    for answer, (asked, sounds, _) in zip(answers, cases, strict=True):
        prompt, tokens = reference.answer(asked, sounds)
        assert answer.prompt_token_ids == prompt
        assert answer.outputs[0].token_ids == tokens


def test_a_sound_is_heard_once(llm: LLM, reference: Reference) -> None:
    media: Any = llm.llm_engine.chat_media
    pool = llm.llm_engine.engine.media.pool  # type: ignore[attr-defined]
    (reference.folder / "sound.wav").write_bytes(file_of(noise(9, 1.0)))
    part = {"type": "audio_url", "audio_url": {"url": f"file://{reference.folder}/sound.wav"}}
    before = pool.num_queries, pool.num_hits, media._sounds.cache.hits
    asked: Any = [filled(asking(None, "One."), [part]), filled(asking("Two.", None), [part])]
    for conversation in asked:
        llm.chat(conversation, PARAMS)
    after = pool.num_queries, pool.num_hits, media._sounds.cache.hits
    assert [now - then for now, then in zip(after, before, strict=True)] == [2, 1, 1]


def test_a_marker_in_a_text_is_text(llm: LLM, reference: Reference) -> None:
    sound = noise(4, 0.5)
    part = {"type": "audio", "audio": (sound, RATE)}
    (answer,) = llm.chat(filled(asking(None, f"Say {reference.family.token}!"), [part]), PARAMS)
    _, counts = reference.family.inputs(reference._extract, [sound])
    assert answer.prompt_token_ids is not None
    assert answer.prompt_token_ids.count(reference.token_id) == counts[0]


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        ({"type": "input_audio", "input_audio": {"data": "@@@", "format": "wav"}}, "not valid base64"),
        ({"type": "input_audio", "input_audio": {"format": "wav"}}, r"input_audio.data: expected a file in base64"),
        ({"type": "audio_url", "audio_url": {"url": "data:audio/wav;base64,AAAA"}}, "no sound that can be decoded"),
        ({"type": "audio_url", "audio_url": "file:///etc/passwd"}, "not below --allowed-local-media-path"),
        ({"type": "audio"}, r"content\[0\].audio: this field is required"),
        ({"type": "audio", "audio": (np.zeros(10, np.int16), RATE)}, "'audio' must be"),
        ({"type": "image_url", "image_url": "data:,"}, "this model accepts text and audio only"),
    ],
)
def test_what_is_no_sound(llm: LLM, part: Any, problem: str) -> None:
    with pytest.raises(RequestError, match=problem):
        llm.chat(filled(asking(None), [part]), PARAMS)


def test_too_many_sounds_and_too_long_ones(llm: LLM, reference: Reference) -> None:
    short = {"type": "audio", "audio": (noise(0, 0.2), RATE)}
    with pytest.raises(RequestError, match=r"4 sounds: a prompt may have at most 3"):
        llm.chat(filled(asking(*[None] * 4), [short] * 4), PARAMS)
    if reference.family is QWEN:
        long = {"type": "audio", "audio": (noise(0, SECONDS + 0.1), RATE)}
        with pytest.raises(RequestError, match=r"2.1 s; this model hears one window, of at most 2 s"):
            llm.chat(filled(asking(None), [long]), PARAMS)


def test_a_template_without_a_place_for_sound(llm: LLM, reference: Reference) -> None:
    """What stands for a sound then comes before the text, as in vLLM."""
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    sounds = [noise(5, 0.5), noise(6, 0.4)]
    parts = [{"type": "audio", "audio": (each, RATE)} for each in sounds]
    token = reference.family.token
    (answer,) = llm.chat(filled(asking(None, f"Say {token} and ", None), parts), PARAMS, chat_template=template)
    shown = {
        "Qwen2Audio": "Audio {}: <|audio_bos|><|AUDIO|><|audio_eos|>", "AudioFlamingo3": "<sound>",
        "GlmAsr": "<|begin_of_audio|><|pad|><|end_of_audio|>",
        "Voxtral": "[BEGIN_AUDIO][AUDIO]", "Ultravox": "<|audio|>",
    }[reference.family.name]  # fmt: skip
    text = "\n".join([shown.format(1), shown.format(2), "Say @ and "])
    _, counts = reference.family.inputs(reference._extract, sounds)
    written, wanted = reference.tokenizer.convert_tokens_to_ids(token), []
    for each in reference.tokenizer(text, add_special_tokens=False)["input_ids"]:
        wanted += [reference.token_id] * counts.pop(0) if each == written else [each]
    assert answer.prompt_token_ids is not None
    end = len(reference.tokenizer("Say @ and ", add_special_tokens=False)["input_ids"])
    assert answer.prompt_token_ids[: len(wanted) - end] == wanted[:-end]
    assert answer.prompt_token_ids.count(reference.token_id) == wanted.count(reference.token_id)
