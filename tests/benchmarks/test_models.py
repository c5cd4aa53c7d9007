import json
import shutil
from pathlib import Path

import pytest

from benchmarks import models
from jaxllm.models.causal_lm import abstract_model
from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.options import ForwardOptions
from tests.thinned import EVERY_CASE

PUBLISHED = sorted(models.FOLDER.glob("*.json"))


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_published_configurations_are_read(tmp_path: Path, path: Path) -> None:
    """Every option of them is known, and a model is built of them, without memory."""
    shutil.copy(path, tmp_path / "config.json")
    config = read_config(tmp_path)
    assert config.context_length <= 2**24
    # As on accelerators, where layers that are alike are built once.
    abstract_model(config, ForwardOptions(stack="scan"), "bfloat16")


LISTED = {
    *("A.X-K1", "DeepSeek-V4-Flash", "LFM2-1.2B", "LFM2-8B-A1B", "MiniMax-M3", "Nemotron-H-8B-Base-8K"),
    *("DiffLlamaConfig", "Hy4-preview", "Zamba-7B-v1", "dots3-note-prev", "ettin-decoder-150m"),
    "rwkv-4-7b-pile",
}
"""Their layers follow no rule but a list, and a longer list would be another one; Zamba's begin otherwise, Hy4's, Dots
3's and Ettin's end elsewhere, and DiffLlama's and RWKV's have numbers that depend on their place."""


@pytest.mark.parametrize("path", [path for path in PUBLISHED if path.stem not in LISTED], ids=lambda path: path.stem)
def test_a_deeper_model_has_no_more_compiled_layers(path: Path) -> None:
    layers, compiled = models.compiled_layers(path)
    for times in (2, 3) if EVERY_CASE else (2,):
        deep, as_many = models.compiled_layers(path, times)
        assert deep == times * layers
        # Layers that read the keys of others have a pattern alongside that of the others, and in Gemma 3n the first ten
        # layers one of their own, which may end elsewhere. Granite 4's pattern begins in the middle.
        assert as_many <= compiled + (path.stem in ("gemma-3n-E4B-it", "granite-4.0-h-small"))
        assert as_many < 15


def test_the_page_has_the_plans() -> None:
    plans = json.loads(models.PLANS.read_text())
    assert set(plans) <= {json.loads(path.read_text())["_name_or_path"] for path in PUBLISHED}
    assert models.PAGE.read_text() == models.page()
