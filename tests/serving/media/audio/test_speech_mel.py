"""Log-mel features of Phi-4 multimodal, compared with those of transformers."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from transformers import Phi4MultimodalFeatureExtractor

from jaxllm.errors import ConfigError, RequestError
from jaxllm.serving.media.audio.resample import RATE, Samples
from jaxllm.serving.media.audio.speech_mel import NOTHING, SpeechMel
from tests.serving.media.audio.sounds import tone

SOURCE = "preprocessor_config.json"


def noise(length: int) -> Samples:
    return (0.1 * np.random.default_rng(length).normal(size=length)).astype(np.float32)


@pytest.mark.parametrize("fields", [{}, {"feature_size": 40, "hop_length": 200, "n_fft": 1024, "win_length": 480}])
def test_features_are_those_of_transformers(fields: dict[str, Any]) -> None:
    oracle = Phi4MultimodalFeatureExtractor(**fields)
    made = SpeechMel.of(oracle.to_dict(), SOURCE, 4000, 8)
    for sound in (tone(1.0), noise(480), noise(3 * RATE + 77), np.zeros(RATE, np.float32), noise(41 * RATE)):
        wanted = oracle(sound, sampling_rate=RATE, return_tensors="np")
        features = wanted["audio_input_features"][0].T
        found = made(sound)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, features, atol=1e-5, rtol=1e-6)
        windows = list(made.windows(sound))
        assert sum(-(-count // 8) for _, count in windows) == wanted["audio_embed_sizes"][0]
        np.testing.assert_array_equal(
            np.concatenate([window[:, 8 : 8 + count] for window, count in windows], axis=1), found
        )
        assert (windows[0][0][:, :8] == NOTHING).all()
        for (before, _), (after, _) in pairwise(windows):
            np.testing.assert_array_equal(after[:, :8], before[:, -8:])


def test_what_is_too_short() -> None:
    with pytest.raises(RequestError, match=r"0.025 s are too short"):
        list(SpeechMel(4000, 8).windows(noise(399)))


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"sampling_rate": 8000}, "sampling_rate=8000"), ({"audio_compression_rate": 4}, "audio_compression_rate=4"),
     ({"win_length": 600}, "win_length=600")],
)  # fmt: skip
def test_what_is_not_supported_is_an_error(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        SpeechMel.of(fields, SOURCE, 4000, 8)
