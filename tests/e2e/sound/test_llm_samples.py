"""Samples of sound in `LLM.generate`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxllm import LLM, SamplingParams
from jaxllm.errors import RequestError
from jaxllm.serving.media.audio.resample import RATE
from jaxllm.serving.transcription.model import TranscriptionModel
from tests.e2e.sound.transcribing import LENGTH, SECONDS, Reference, clip, save_transcribing_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("samples")
    save_transcribing_model(found)
    return found


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    made = LLM(
        str(folder), max_model_len=LENGTH, max_num_seqs=4, max_num_batched_tokens=8, optimization_level=0,
        enforce_eager=True,
    )  # fmt: skip
    yield made
    made.close()


def test_samples_and_text_in_a_prompt(llm: LLM, folder: Path) -> None:
    reference = Reference(folder)
    model = TranscriptionModel.read(folder, reference.tokens, LENGTH)
    params = SamplingParams(temperature=0, max_tokens=None, extra_args=model.extra_args())
    sounds = [clip(seed, 1.5) for seed in range(3)]
    text = "<|startoftranscript|><|en|><|transcribe|>"
    prompts: Any = [{"prompt": text, "multi_modal_data": {"audio": (sound, RATE)}} for sound in sounds]
    for sound, answer in zip(sounds, llm.generate(prompts, params), strict=True):
        assert answer.prompt_token_ids == model.prompt("en", "transcribe")
        found = [token for token in answer.outputs[0].token_ids if token != model.end]
        assert found == reference.window(sound, "en")


def test_another_rate(llm: LLM) -> None:
    sound = clip(1, 1.0)
    prompt: Any = {"prompt_token_ids": [5], "multi_modal_data": {"audio": (np.repeat(sound, 3).astype(float), 48000.0)}}
    (answer,) = llm.generate([prompt], SamplingParams(temperature=0, max_tokens=2, ignore_eos=True))
    assert len(answer.outputs[0].token_ids) == 2


@pytest.mark.parametrize(
    ("audio", "words"),
    [
        ((clip(1, SECONDS + 0.1), RATE), "one window, of at most 2 s"),
        ((clip(1, 0.1), 100), "100 samples per second"),
        ((clip(1, 0.1), 16000.5), "'audio' must be"),
        ((clip(1, 0.1), float("nan")), "'audio' must be"),
        ((clip(1, 0.1)[None], RATE), "from 1 to all"),
        ((clip(1, 0.1).astype(np.int16), RATE), "'audio' must be"),
        (clip(1, 0.1), "'audio' must be"),
        ([(clip(1, 0.1), RATE)] * 2, "one window of sound per prompt, got 2"),
        ((np.zeros(0, np.float32), RATE), "no samples"),
        ((np.full(10, np.inf, np.float32), RATE), "finite"),
    ],
)
def test_what_is_no_sound(llm: LLM, audio: Any, words: str) -> None:
    prompt: Any = {"prompt_token_ids": [5], "multi_modal_data": {"audio": audio}}
    with pytest.raises(RequestError, match=words):
        llm.generate([prompt], SamplingParams(max_tokens=1))
