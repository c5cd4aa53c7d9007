"""What files of checkpoints say of sound, and the rules and prompts that follow from it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from transformers.models.whisper.tokenization_whisper import LANGUAGES, TO_LANGUAGE_CODE

from jaxllm.errors import ConfigError, RequestError
from jaxllm.serving.transcription.languages import CODES, NAMES, code_of
from jaxllm.serving.transcription.model import TranscriptionModel

TOKENS = {
    "<|endoftext|>": 10,
    "<|startoftranscript|>": 11,
    "<|en|>": 12,
    "<|de|>": 13,
    "<|yue|>": 14,
    "<|translate|>": 15,
    "<|transcribe|>": 16,
    "<|startofprev|>": 17,
    "<|nocaptions|>": 18,
    "<|notimestamps|>": 19,
}
GENERATION = {
    "suppress_tokens": [1, 2, 11],
    "begin_suppress_tokens": [3, 10],
    "max_initial_timestamp_index": 40,
    "is_multilingual": True,
    "forced_decoder_ids": [[1, None]],
}
FEATURES = {
    "feature_extractor_type": "WhisperFeatureExtractor",
    "feature_size": 128,
    "processor_class": "WhisperProcessor",
}


def read(folder: Path, tokens: dict[str, int] = TOKENS, **files: Any) -> TranscriptionModel:
    given = {"preprocessor_config": FEATURES, "generation_config": GENERATION, **files}
    for name, content in given.items():
        if content is not None:
            (folder / f"{name}.json").write_text(json.dumps(content))
    return TranscriptionModel.read(folder, tokens, 448)


def test_languages_are_those_of_transformers() -> None:
    assert NAMES == LANGUAGES
    assert CODES == TO_LANGUAGE_CODE
    given = ("en", "EN", " en-US", "de_AT", "German", "castilian", "haitian creole", "xx", "e", "")
    assert [code_of(each) for each in given] == ["en", "en", "en", "de", "de", "es", "ht", None, None, None]


def test_a_model_of_many_languages(tmp_path: Path) -> None:
    model = read(tmp_path)
    assert model.features.num_bins == 128
    assert model.step == 0.02
    assert model.first_time == 20
    assert model.prompt("de", "translate") == [11, 13, 15]
    assert model.prompt("yue", "transcribe", [5, 6]) == [17, 5, 6, 11, 14, 16]
    assert model.opening(range(1000)) == [17, *range(777, 1000), 11]
    assert model.language(None) is None
    assert model.language(" ") is None
    assert model.language("german") == "de"
    model.check_task("translate")
    for wrong in ("klingon", "fr", "de1"):
        with pytest.raises(RequestError, match="expected an ISO 639-1 code"):
            model.language(wrong)
    assert model.extra_args() == {
        "transcription": {
            "suppressed": (1, 2, 11),
            "suppressed_first": (3, 10),
            "timestamps": {"first": 20, "end": 10, "none": 19, "most_initial": 40},
        }
    }


def test_a_model_of_english(tmp_path: Path) -> None:
    """Its tokenizer has tokens of languages, too."""
    model = read(tmp_path, generation_config={**GENERATION, "is_multilingual": False})
    assert model.prompt("en", "transcribe") == [11]
    assert model.language(None) == model.language("English") == "en"
    with pytest.raises(RequestError, match="English only"):
        model.language("de")
    with pytest.raises(RequestError, match="does not translate"):
        model.check_task("translate")


def test_a_model_without_timestamps_and_without_options(tmp_path: Path) -> None:
    tokens = {"<|endoftext|>": 10, "<|startoftranscript|>": 11}
    model = read(tmp_path, tokens, generation_config=None)
    assert model.first_time is None
    assert model.prompt("en", "transcribe", [4]) == [11]
    assert model.extra_args() == {"transcription": {"suppressed": (), "suppressed_first": (), "timestamps": None}}


def test_features_in_the_file_of_the_processor(tmp_path: Path) -> None:
    processor = {"feature_extractor": {"feature_size": 80, "hop_length": 320}}
    assert read(tmp_path, preprocessor_config=None, processor_config=processor).step == 0.04


@pytest.mark.parametrize(
    ("files", "tokens", "words"),
    [
        ({"preprocessor_config": None}, TOKENS, "has no preprocessor_config.json"),
        ({}, {"<|endoftext|>": 1}, "no token <|startoftranscript|>"),
        ({"generation_config": {"suppress_tokens": "all"}}, TOKENS, "suppress_tokens"),
        ({"generation_config": {"suppress_tokens": [-5]}}, TOKENS, "numbers that are no tokens"),
        ({"generation_config": {"suppress_tokens": list(range(500))}}, TOKENS, "at most 160"),
        ({"preprocessor_config": {"dither": 1.0}}, TOKENS, "dither"),
    ],
)
def test_wrong_files_are_errors(tmp_path: Path, files: Any, tokens: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        read(tmp_path, tokens, **files)
