"""The model that hears and ships: its words and those of transformers, of long sound, over HTTP."""

import io
import re
import sys
from collections.abc import Iterator
from random import Random
from typing import Any

import openai
import pytest
import torch
from transformers import PreTrainedTokenizerFast, WhisperFeatureExtractor, WhisperForConditionalGeneration

from jaxllm.models.checkpoint.find_model import find_model
from jaxllm.serving.media.audio.files import decode
from jaxllm.serving.media.audio.resample import RATE, Samples
from scripts.demo_sound.clips import CALM, HURRIED, Clip, clip
from scripts.demo_sound.evaluate import HELD_OUT, word_errors
from scripts.demo_sound.voices import PROGRAM, is_installed, recordings
from tests.conftest import ROOT
from tests.serving.media.audio.sounds import file_of
from tests.serving.server_process import running

SPOKEN = ROOT / "docs" / "examples" / "spoken_numbers.ogg"
TEXT = (ROOT / "docs" / "examples" / "spoken_numbers.txt").read_text(encoding="utf-8").split()
FLAGS = (
    *("--host", "127.0.0.1", "--port", "0", "--optimization-level", "0", "--strict-compilation"),
    *("--max-num-seqs", "4", "--max-num-batched-tokens", "8"),
)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    log = tmp_path_factory.mktemp("hearing") / "log"
    with running(log, "demo-sound", *FLAGS) as server:
        yield openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    assert "Traceback" not in log.read_text()


class Reference:
    """transformers' model, and its own way through long sound."""

    def __init__(self) -> None:
        folder = find_model("demo-sound")
        self._tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        self._model: Any = WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
        self._extract = WhisperFeatureExtractor.from_pretrained(folder)

    def words(self, samples: Samples) -> list[str]:
        inputs = self._extract(
            samples, sampling_rate=RATE, truncation=False, padding="longest", return_attention_mask=True,
            return_tensors="pt",
        )  # fmt: skip
        with torch.no_grad():
            (ids,) = self._model.generate(**inputs, return_timestamps=True)
        text = self._tokenizer.decode(ids, skip_special_tokens=True)
        return re.sub(r"<\|[\d.]+\|>", "", text).split()


def written(client: openai.OpenAI, data: bytes) -> Any:
    """The answer in the form that says most, whose text is that of the plain one."""
    plain, verbose = (
        client.audio.transcriptions.create(model="demo-sound", file=("sound", io.BytesIO(data)), response_format=form)
        for form in ("json", "verbose_json")
    )
    found: Any = verbose
    assert found.text == plain.text
    assert "".join(each.text for each in found.segments).strip() == plain.text
    return found


def test_the_spoken_numbers_are_written_down(client: openai.OpenAI) -> None:
    data = SPOKEN.read_bytes()
    found = written(client, data)
    assert found.duration == pytest.approx(31.0, abs=0.1)
    assert word_errors(TEXT, found.text.split()) <= len(TEXT) // 10
    times = [time for each in found.segments for time in (each.start, each.end)]
    assert times == sorted(times)
    assert all(0.2 < each.end - each.start < 3.0 for each in found.segments)
    assert word_errors(TEXT, Reference().words(decode(data, 60))) <= len(TEXT) // 10


@pytest.mark.exhaustive
@pytest.mark.skipif(not is_installed(), reason=f"there is no {PROGRAM}")
def test_word_error_rates_of_long_sound(client: openai.OpenAI, capsys: pytest.CaptureFixture[str]) -> None:
    """The figures of docs/audio.md. Hurried sound has no pause in which a server may cut it."""
    spoken, random, reference = recordings(held_out=True), Random(HELD_OUT), Reference()
    sets: dict[str, list[Clip]] = {
        "10 clips of 31 s, with pauses": [clip(spoken, random, 31.0, CALM, 31.0) for _ in range(10)],
        "10 clips of 31 s, without pauses": [clip(spoken, random, 31.0, HURRIED, 31.0) for _ in range(10)],
        "10 minutes": [clip(spoken, random, 600.0, CALM, 600.0)],
    }
    for name, clips in sets.items():
        words, errors = 0, [0, 0]
        for each in clips:
            wanted, data = each.text.split(), file_of(each.samples)
            words += len(wanted)
            errors[0] += word_errors(wanted, written(client, data).text.split())
            errors[1] += word_errors(wanted, reference.words(decode(data, 600)))
        with capsys.disabled():
            ours, theirs = (f"{count / words:.2%}" for count in errors)
            sys.stdout.write(f"\n{name}: {words} words, jaxllm {ours}, transformers {theirs}\n")
        assert errors[0] <= errors[1] + words // 100, name
        assert errors[0] <= words // 10, name
