"""The demo model that hears as it was trained, compared with transformers and with what is said."""

from pathlib import Path
from random import Random

import jax.numpy as jnp
import numpy as np
import pytest
import soundfile
import torch
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

from jaxllm.models.checkpoint.find_model import find_model
from jaxllm.serving.media.audio.resample import RATE
from scripts.demo_sound import export, voices
from scripts.demo_sound.clips import CALM, HURRIED, Word, clip
from scripts.demo_sound.evaluate import evaluate, word_errors
from scripts.demo_sound.network import encoded, logits
from scripts.demo_sound.tokens import SECONDS, make_tokenizer, tokens_of
from scripts.demo_sound.training import FEATURES
from tests.conftest import ROOT
from tests.serving.media.audio.sounds import tone

FOLDER = find_model("demo-sound")


def test_training_computes_what_transformers_does() -> None:
    params, shape, tokenizer, _ = export.load(FOLDER)
    samples, _ = soundfile.read(ROOT / "docs" / "examples" / "spoken_numbers.ogg", dtype="float32")
    samples = samples[: SECONDS * RATE]
    tokens, _ = tokens_of(tokenizer, [[Word("seven", 8000, 16000), Word("one", 20000, 30000)]])
    found, _ = logits(params, shape, encoded(params, shape, jnp.asarray(FEATURES(samples)[None])), jnp.array([tokens]))
    model = WhisperForConditionalGeneration.from_pretrained(FOLDER, dtype=torch.float32).eval()
    features = WhisperFeatureExtractor.from_pretrained(FOLDER)(samples, sampling_rate=RATE, return_tensors="pt")
    with torch.no_grad():
        wanted = model(features["input_features"], decoder_input_ids=torch.tensor([tokens])).logits
    # The exported positions of the encoder are rounded to bfloat16.
    np.testing.assert_allclose(found, wanted, atol=0.03)


def test_saved_weights_come_back(tmp_path: Path) -> None:
    params, shape, _, run = export.load(FOLDER)
    export.save_files(make_tokenizer(), shape, tmp_path)
    export.save_weights(params, shape, tmp_path, run)
    shipped = {path.name for path in FOLDER.iterdir() if path.suffix != ".md"}
    assert {path.name for path in tmp_path.iterdir()} == shipped
    for name in shipped - {"model.safetensors"}:
        assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes(), name
    again, *_, note = export.load(tmp_path)
    assert (note, sorted(again)) == (run, sorted(params))
    assert all(np.array_equal(again[name], params[name]) for name in params)


def test_the_model_is_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 3_000_000


def test_what_is_written_of_a_window_that_cuts_a_phrase_off() -> None:
    tokenizer, second = make_tokenizer(), RATE
    whole = [Word("one", second // 2, second), Word("two", second * 5 // 4, second * 3 // 2)]
    cut_off = [Word("three", second * 5 // 2, second * 7 // 2)]
    tokens, spans = tokens_of(tokenizer, [whole, cut_off])
    text = tokenizer.decode(tokens, skip_special_tokens=False)
    assert text == "<|startoftranscript|><|0.50|> one two<|1.50|><|2.50|><|endoftext|>"
    assert len(spans) == len(tokens)
    assert spans[2] == (second // 2, second)


def test_clips_are_what_they_say() -> None:
    spoken = {word: [[tone(0.3)]] for word in voices.WORDS}
    for pauses in (CALM, HURRIED):
        made = clip(spoken, Random(1), 20.0, pauses, 20.0)
        assert len(made.samples) == 20 * RATE
        between = [(b[0].start - a[-1].end) / RATE for a, b in zip(made.phrases, made.phrases[1:], strict=False)]
        assert len(between) > 5
        assert pauses[0] - 0.01 < min(between) <= max(between) < pauses[1] + 0.01
        for word in (word for phrase in made.phrases for word in phrase):
            assert np.abs(made.samples[word.start : word.end]).mean() > 0.05


def test_errors_are_the_fewest_changes() -> None:
    cases = {("a b c", "a b c"): 0, ("a b c", "a c"): 1, ("a b", "b a"): 2, ("", "a b"): 2, ("a b c", "x b y c"): 2}
    assert {pair: word_errors(*(text.split() for text in pair)) for pair in cases} == cases


@pytest.mark.exhaustive
@pytest.mark.skipif(not voices.is_installed(), reason=f"there is no {voices.PROGRAM}")
def test_held_out_windows_are_mostly_right() -> None:
    params, shape, tokenizer, _ = export.load(FOLDER)
    figures = evaluate(params, shape, tokenizer, voices.recordings(held_out=True), 64)
    assert figures.words > 200
    assert figures.errors <= figures.words // 20
    assert figures.near >= figures.times * 9 // 10
