"""Log-mel features, compared with those of transformers."""

from typing import Any

import numpy as np
import pytest
from transformers import WhisperFeatureExtractor

from jaxllm.errors import ConfigError
from jaxllm.serving.media.audio.mel import MelFeatures, mel_filters
from jaxllm.serving.media.audio.resample import RATE, Samples
from tests.serving.media.audio.sounds import tone

SOURCE = "preprocessor_config.json"


def sounds() -> dict[str, Samples]:
    noise = np.random.default_rng(3).normal(size=30 * RATE).astype(np.float32)
    return {
        "tone": tone(5.0),
        "noise": 0.1 * noise,
        "quiet": 1e-6 * noise[: 7 * RATE],
        "silence": np.zeros(RATE, np.float32),
        "one": np.ones(1, np.float32),
        "loud end": np.concatenate([np.zeros(29 * RATE, np.float32), noise[:RATE]]),
    }


@pytest.mark.parametrize("name", sounds())
@pytest.mark.parametrize("fields", [{}, {"feature_size": 128}, {"feature_size": 40, "hop_length": 200, "n_fft": 512}])
def test_features_are_those_of_transformers(name: str, fields: dict[str, Any]) -> None:
    sound = sounds()[name]
    oracle = WhisperFeatureExtractor(**fields)
    padded = np.pad(sound, (0, oracle.n_samples - len(sound)))
    wanted = oracle._np_extract_fbank_features(padded[None], "cpu")[0]
    features = MelFeatures.of(oracle.to_dict(), SOURCE)
    found = features(sound)
    assert found.dtype == np.float32
    assert found.shape == (features.num_bins, features.num_frames)
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_whole_processor_of_transformers_agrees() -> None:
    """The way that people call it, which computes on torch."""
    oracle = WhisperFeatureExtractor()
    wanted = oracle(tone(2.0), sampling_rate=RATE, return_tensors="np")["input_features"][0]
    np.testing.assert_allclose(MelFeatures()(tone(2.0)), wanted, atol=1e-4)


@pytest.mark.parametrize("length", [100, 3 * RATE + 5, 61 * RATE])
def test_sound_without_silence_after_it(length: int) -> None:
    """Of which transformers pads no more than a frame: levels are those of all windows."""
    sound = np.random.default_rng(length).normal(scale=0.1, size=length).astype(np.float32)
    sound[: length // 2] *= 1e-4
    padded = np.pad(sound, (0, max(0, 320 - length)))
    wanted = WhisperFeatureExtractor()(
        padded, sampling_rate=RATE, padding="longest", pad_to_multiple_of=160, truncation=False, return_tensors="np"
    )["input_features"][0]
    made, count = MelFeatures().ending(sound)
    joined = np.concatenate(made, axis=1)
    assert count == wanted.shape[1]
    np.testing.assert_allclose(joined[:, :count], wanted, atol=1e-4)
    assert not joined[:, count:].any()


def test_filters_are_those_of_transformers() -> None:
    np.testing.assert_allclose(mel_filters(400, 80), WhisperFeatureExtractor().mel_filters, atol=1e-12)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"sampling_rate": 8000}, "sampling_rate=8000"),
        ({"dither": 0.1}, "dither=0.1"),
        ({"feature_extractor_type": "SeamlessM4TFeatureExtractor"}, "only WhisperFeatureExtractor"),
        ({"hop_lenght": 160}, "hop_lenght=160"),
        ({"feature_size": "80"}, "feature_size"),
    ],
)
def test_what_is_not_supported_is_an_error(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        MelFeatures.of(fields, SOURCE)
