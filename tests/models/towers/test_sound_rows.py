"""Rows of sound in place of tokens are those of transformers."""

import json
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxllm.models.causal_lm import load_model
from jaxllm.models.checkpoint.checkpoint import Checkpoint
from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.errors import ModelError
from jaxllm.models.options import ForwardOptions
from jaxllm.models.towers.sound import SoundRows
from tests.e2e.sound.chatting import BINS, FLAMINGO, GLM, QWEN, SECONDS, VOXTRAL, Family, reference_in, save
from tests.e2e.sound.windows import window

FRAMES = SECONDS * 100
MASKS = {
    "Qwen2Audio": "feature_attention_mask",
    "AudioFlamingo3": "input_features_mask",
    "GlmAsr": "input_features_mask",
}


@pytest.mark.parametrize(
    ("family", "stack"),
    [(QWEN, "loop"), (FLAMINGO, "loop"), (VOXTRAL, "scan"), (GLM, "scan")],
    ids=lambda each: getattr(each, "name", each),
)
def test_rows(family: Family, stack: Literal["loop", "scan"], tmp_path: Path, demo_folder: Path) -> None:
    save(family, tmp_path, demo_folder)
    options = ForwardOptions(max_model_len=64, sees_images=True, stack=stack)
    tower = load_model(Checkpoint(tmp_path), read_config(tmp_path), options, "float32").sound
    assert isinstance(tower, SoundRows)
    features, model = window(0, BINS, FRAMES), reference_in(family, tmp_path)
    for count in (FRAMES, 61):
        masks = {name: torch.arange(FRAMES)[None] < count for name in [MASKS.get(family.name)] if name}
        if not masks and count < FRAMES:
            continue
        with torch.no_grad():
            if family is QWEN:
                wanted = _qwen_rows(model, features, count)
            else:
                wanted = model.get_audio_features(torch.from_numpy(features)[None], **masks).pooler_output.numpy()
        rows = np.asarray(tower(jnp.asarray(features), jnp.int32(count)))
        assert len(wanted) == (count + 1) // (2 * tower.rows.positions_per_row)
        np.testing.assert_allclose(rows[: len(wanted)], wanted, atol=1e-4, rtol=1e-5)


@pytest.fixture(scope="module")
def voxtral(tmp_path_factory: pytest.TempPathFactory, demo_folder: Path) -> Path:
    folder = tmp_path_factory.mktemp("voxtral")
    save(VOXTRAL, folder, demo_folder)
    return folder


def _qwen_rows(model: Any, features: np.ndarray, count: int) -> np.ndarray:
    """Its mask is made outside of the tower."""
    positions = torch.arange(FRAMES // 2) < (count - 1) // 2 + 1
    mask = torch.zeros(1, 1, FRAMES // 2, FRAMES // 2).masked_fill(~positions, -torch.inf)
    inner = model.model if hasattr(model, "model") else model
    hidden = inner.audio_tower(torch.from_numpy(features)[None], attention_mask=mask).last_hidden_state
    found: np.ndarray = inner.multi_modal_projector(hidden)[0, : (count + 1) // 4].numpy()
    return found


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"audio_config": {"hidden_size": 60}}, "'audio_config' must be an intermediate_size of whole positions"),
        ({"audio_config": {"max_source_positions": 101}}, "'audio_config' must be an intermediate_size of whole pos"),
        ({"audio_config": {"sees": 1}}, "audio_config: option 'sees' = 1 is unknown"),
        ({"audio_token_id": None}, "audio_token_id"),
        ({"projector_hidden_act": "sine"}, "'projector_hidden_act' must be one of"),
        ({"text_config": {"model_type": "mamba"}}, "text_config: 'model_type' must be one of"),
    ],
)
def test_configurations_that_it_does_not_have(
    voxtral: Path, tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    values = json.loads((voxtral / "config.json").read_text())
    for name, change in changes.items():
        values[name] = {**values[name], **change} if isinstance(change, dict) else change
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(ModelError, match=problem):
        read_config(tmp_path)
