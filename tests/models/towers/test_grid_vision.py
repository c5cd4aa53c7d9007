"""Towers for images of any size give transformers' rows, in any program that holds the image."""

import json
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from safetensors.numpy import load_file, save_file

from jaxllm.executor.media_calls import patch_places
from jaxllm.models.causal_lm import load_model
from jaxllm.models.checkpoint.checkpoint import Checkpoint
from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.options import ForwardOptions
from jaxllm.models.towers.crop import Crop
from tests.e2e.images.qwen import FAMILIES, OTHERS, floats, save
from tests.e2e.images.qwen_prompts import MERGE, crop_of, pixels
from tests.quick import QUICK
from tests.thinned import thinned

SIZES = [(1, 1), (2, 3), (5, 4), (7, 9), (1, 12), (8, 8)]
"""Rows of the language model each way; a window of the test's Qwen2.5-VL has two."""
PROGRAM = 288
"""Patches: every image but the largest is padded."""


STACKS = thinned(
    [*((name, "scan") for name in (*FAMILIES, "glm4v", "paddleocr_vl")), ("qwen2_5_vl", "loop")],
    [("glm46v", "scan"), ("glm4v_moe", "scan"), ("qwen3_vl", "loop")],
)
"""Two of the others have the tower of GLM-4V."""


def test_other_names(tmp_path: Path) -> None:
    """Published checkpoints have the language model's options at the top; others have both parts below "model"."""
    published, other = tmp_path / "published", tmp_path / "other"
    save(FAMILIES["qwen2_5_vl"], published)
    other.mkdir()
    beginnings = {"model.": "model.language_model.", "visual.": "model.visual.", "lm_head.": "lm_head."}
    renamed = {
        after + name.removeprefix(before): tensor
        for name, tensor in load_file(published / "model.safetensors").items()
        for before, after in beginnings.items()
        if name.startswith(before)
    }
    save_file(renamed, other / "model.safetensors")
    values = json.loads((published / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(values))
    text = values.pop("text_config")
    rope = {"rope_theta": 10_000.0, "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}
    given = {name: value for name, value in text.items() if name not in ("model_type", "rope_parameters")}
    (published / "config.json").write_text(json.dumps({**given, **values, **rope}))
    assert read_config(published) == read_config(other)
    options = ForwardOptions(sees_images=True)
    models = [load_model(Checkpoint(folder), read_config(folder), options, "float32") for folder in (published, other)]
    jax.tree.map(np.testing.assert_array_equal, *(nnx.state(model) for model in models))


@pytest.mark.parametrize(("name", "stack"), STACKS)
def test_rows(tmp_path: Path, name: str, stack: Literal["loop", "scan"]) -> None:
    reference = save({**FAMILIES, **OTHERS}[name], tmp_path)
    config = read_config(tmp_path)
    assert config.tower is not None
    loaded = load_model(Checkpoint(tmp_path), config, ForwardOptions(stack=stack, sees_images=True), "float32")
    assert loaded.tower is not None
    graph, parameters = nnx.split(loaded.tower)
    merge: Any = nnx.merge
    encode = jax.jit(lambda *given: merge(graph, given[0])(given[1], Crop(*given[2:])), compiler_options=QUICK)
    for size in SIZES:
        crop = crop_of(pixels(1, *size))
        with torch.no_grad():
            grid = torch.tensor([[1, crop.height, crop.width]])
            found = reference.model.get_image_features(floats(crop, reference), grid, return_dict=True)
        parts = [found.pooler_output, *(getattr(found, "deepstack_features", None) or ())]
        wanted = torch.cat([each for (each,) in parts], dim=1).numpy()
        assert wanted.std() > 0.1
        padding = ((0, PROGRAM - len(crop.patches)), (0, 0))
        places = np.pad(patch_places(crop.height, crop.width, MERGE), padding)
        extent = jnp.array([crop.height, crop.width], jnp.int32)
        patches = np.tile(crop.patches, (1, config.tower.frames))
        rows = encode(parameters, np.pad(patches, padding), places, extent)
        np.testing.assert_allclose(rows[: len(wanted)], wanted, atol=1e-4, rtol=1e-5, err_msg=str(size))
    if config.tower.frames == 2:
        check_video(reference, lambda patches, *rest: encode(parameters, patches, *rest))


def check_video(reference: Any, encode: Any) -> None:
    """Each patch in time of a video has the rows that transformers gives it among all."""
    steps = [[crop_of(pixels(2 * step + frame, 3, 4)) for frame in range(2)] for step in range(3)]
    height, width = steps[0][0].height, steps[0][0].width
    given = [torch.stack([floats(frame, reference) for frame in step]) for step in steps]
    both = [first.reshape(len(first), 3, 2, -1).clone() for first, _ in given]
    for step, (_, second) in zip(both, given, strict=True):
        step[:, :, 1] = second.reshape(len(second), 3, 2, -1)[:, :, 1]
    with torch.no_grad():
        grid = torch.tensor([[len(steps), height, width]])
        numbers = torch.cat([step.reshape(len(step), -1) for step in both])
        found = reference.model.get_video_features(numbers, grid, return_dict=True)
    parts = [found.pooler_output, *(getattr(found, "deepstack_features", None) or ())]
    wanted = torch.cat([torch.cat(list(part)) for part in parts], dim=1).numpy()
    count = height * width
    padding = ((0, PROGRAM - count), (0, 0))
    places, extent = np.pad(patch_places(height, width, MERGE), padding), jnp.array([height, width], jnp.int32)
    rows = [
        encode(np.pad(np.concatenate([frame.patches for frame in step], axis=1), padding), places, extent)
        for step in steps
    ]
    joined = np.concatenate([each[: count // MERGE**2] for each in rows])
    np.testing.assert_allclose(joined, wanted, atol=1e-4, rtol=1e-5)
