"""Towers of Qwen's models give transformers' rows for images of any size, in the smallest program that holds them."""

from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from jaxllm.executor.media_calls import patch_places
from jaxllm.models.causal_lm import load_model
from jaxllm.models.checkpoint.checkpoint import Checkpoint
from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.options import ForwardOptions
from jaxllm.models.towers.crop import Crop
from tests.e2e.images.qwen import FAMILIES, MERGE, crop_of, floats, pixels, save
from tests.quick import QUICK

SIZES = [(1, 1), (2, 3), (5, 4), (7, 9), (1, 12), (8, 8)]
"""Rows of the language model each way; a window of the test's Qwen2.5-VL has two."""
PROGRAM = 288
"""Patches: every image but the largest is padded."""


STACKS = [*((name, "scan") for name in FAMILIES), ("qwen2_5_vl", "loop"), ("qwen3_vl", "loop")]


@pytest.mark.parametrize(("name", "stack"), STACKS)
def test_rows(tmp_path: Path, name: str, stack: Literal["loop", "scan"]) -> None:
    reference = save(FAMILIES[name], tmp_path)
    config = read_config(tmp_path)
    assert config.tower is not None
    loaded = load_model(Checkpoint(tmp_path), config, ForwardOptions(stack=stack, sees_images=True), "float32")
    assert loaded.tower is not None
    graph, parameters = nnx.split(loaded.tower)
    encode = jax.jit(lambda *given: nnx.merge(graph, given[0])(given[1], Crop(*given[2:])), compiler_options=QUICK)
    for size in SIZES:
        crop = crop_of(pixels(1, *size))
        with torch.no_grad():
            grid = torch.tensor([[1, crop.height, crop.width]])
            found = reference.model.visual(floats(crop), grid_thw=grid, return_dict=True)
        wanted = torch.cat([found.pooler_output, *(getattr(found, "deepstack_features", None) or ())], dim=1).numpy()
        assert wanted.std() > 0.1
        padding = ((0, PROGRAM - len(crop.patches)), (0, 0))
        places = np.pad(patch_places(crop.height, crop.width, MERGE), padding)
        extent = jnp.array([crop.height, crop.width], jnp.int32)
        rows = encode(parameters, np.pad(crop.patches, padding), places, extent)
        np.testing.assert_allclose(rows[: len(wanted)], wanted, atol=1e-4, rtol=1e-5, err_msg=str(size))
