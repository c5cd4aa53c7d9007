"""Ultravox, whose parts are checkpoints of their own: they are found, and what is missing is named."""

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, WhisperFeatureExtractor

from jaxllm.models.causal_lm import load_model
from jaxllm.models.checkpoint.checkpoint import Checkpoint
from jaxllm.models.checkpoint.find_model import find_model
from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.errors import ModelError
from jaxllm.models.options import ForwardOptions
from jaxllm.models.towers.sound import SoundRows
from tests.e2e.sound import ultravox
from tests.e2e.sound.chatting import BINS, SECONDS, TEXT_CONFIG, ULTRAVOX
from tests.e2e.sound.windows import window

TEXT = {**TEXT_CONFIG, "vocab_size": 40}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def saved(folder: Path, **options: Any) -> Path:
    folder.mkdir()
    WhisperFeatureExtractor(feature_size=BINS, chunk_length=SECONDS).save_pretrained(folder)
    ultravox.save(folder, ULTRAVOX.audio_config, TEXT, 39, **options)
    return folder


def rows_of(folder: Path, features: np.ndarray, count: int) -> np.ndarray:
    options = ForwardOptions(max_model_len=64, sees_images=True, stack="scan")
    tower = load_model(Checkpoint(folder), read_config(folder), options, "float32").sound
    assert isinstance(tower, SoundRows)
    return np.asarray(tower(jnp.asarray(features), jnp.int32(count)))


def test_rows_of_sound_that_ends(tmp_path: Path) -> None:
    """A whole window, and sound of an odd number of frames: nothing after it counts, not even as silence."""
    folder = saved(tmp_path / "model", middle=False)
    model, whole = ultravox.Ultravox(folder), window(0, BINS, SECONDS * 100)
    found = find_model(str(folder))
    for count in (SECONDS * 100, 61):
        with torch.no_grad():
            wanted = model.rows(torch.from_numpy(whole[:, :count])).numpy()
        rows = rows_of(found, whole, count)[: len(wanted)]
        assert len(wanted) == -(-count // 16)
        np.testing.assert_allclose(rows, wanted, atol=1e-4, rtol=0)


def test_an_encoder_that_was_trained_further(tmp_path: Path) -> None:
    """Its weights and configuration are in the repository. The same numbers give the same rows."""
    apart, own = saved(tmp_path / "apart"), saved(tmp_path / "own", own=True)
    (own / "preprocessor_config.json").unlink()
    features = window(1, BINS, SECONDS * 100)
    found = [rows_of(find_model(str(folder)), features, 61)[:4] for folder in (apart, own)]
    np.testing.assert_array_equal(found[0], found[1])
    made = json.loads((find_model(str(own)) / "preprocessor_config.json").read_text())
    assert made["feature_size"] == BINS


def test_parts_may_be_elsewhere(tmp_path: Path, cache: Path) -> None:
    folder = saved(tmp_path / "model")
    first = find_model(str(folder))
    assert find_model(str(folder)) == first != find_model(str(folder), weights=False)
    (folder / "llama").rename(tmp_path / "elsewhere")
    with pytest.raises(ModelError, match=r"language model is '.*llama' \(text_model_id\).*no such folder; download"):
        find_model(str(folder))
    moved = find_model(str(folder), overrides={"text_model_id": str(tmp_path / "elsewhere")})
    assert read_config(moved).vocab_size == TEXT["vocab_size"]
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, "text_model_id": "meta-llama/Llama-3.2-1B-Instruct"}))
    with pytest.raises(ModelError, match=r"it is not in the local Hub cache.*--hf-overrides '\{\"text_model_id\": "):
        find_model(str(folder))
    assert not list(cache.rglob(".new-*"))


def test_a_marker_without_a_row_of_the_embedding(tmp_path: Path, demo_folder: Path) -> None:
    """It needs a token in reserve, which then is the marker for transformers as well."""
    folder = saved(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(demo_folder)
    tokenizer.add_tokens([ultravox.MARKER], special_tokens=True)
    tokenizer.save_pretrained(folder)
    with pytest.raises(ModelError, match=r"is token \d+, but the language model has 40, and none in reserve"):
        find_model(str(folder))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"num_projector_layers": 2}, "'num_projector_layers' must be 0"),
        ({"audio_latency_block_size": 100}, "'audio_latency_block_size' must be null"),
        ({"text_model_lora_config": {"r": 8}}, "'r' must be 0"),
        ({"hidden_size": 95}, "'hidden_size' must be even"),
        ({"audio_token_index": None}, "audio_token_index"),
    ],
)
def test_configurations_that_it_does_not_have(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    folder = saved(tmp_path / "model")
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, **changes}))
    with pytest.raises(ModelError, match=problem):
        read_config(find_model(str(folder)))
