"""The sizes of images that have programs, of a model whose image processor says how large they become."""

import json
from pathlib import Path

import pytest

from jaxllm.config import EngineConfig
from jaxllm.errors import ConfigError
from jaxllm.executor.resolve import resolve_config

CONFIG = {
    "architectures": ["Gemma4ForConditionalGeneration"],
    "model_type": "gemma4",
    "text_config": {
        "model_type": "gemma4_text", "vocab_size": 300, "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "intermediate_size": 64,
        "global_head_dim": 32, "use_bidirectional_attention": "vision", "hidden_size_per_layer_input": 0,
    },
    "vision_config": {"hidden_size": 32, "head_dim": 8, "num_attention_heads": 4, "num_hidden_layers": 1},
    "image_token_id": 290, "dtype": "float32",
}  # fmt: skip


def most(folder: Path, tokens: int | None, **options: object) -> tuple[int, int]:
    """Patches of the largest image, and tokens of a step."""
    (folder / "config.json").write_text(json.dumps(CONFIG))
    if tokens is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps({"max_soft_tokens": tokens}))
    resolved = resolve_config(EngineConfig.from_options({"model": str(folder), "load_format": "dummy", **options}))
    assert resolved.model.tower is not None
    return resolved.model.tower.most_patches, resolved.max_num_batched_tokens


def test_the_image_processor_says_it(tmp_path: Path) -> None:
    assert most(tmp_path, None) == (280 * 9, 512)
    assert most(tmp_path, 1120) == (1120 * 9, 2048), "a step has room for an image and a token of 63 others"


def test_an_option_says_it(tmp_path: Path) -> None:
    assert most(tmp_path, 70, max_image_patches=140 * 9) == (140 * 9, 512)
    assert most(tmp_path, 1120, media_pool_tokens=100) == (100 * 9, 512)


def test_more_than_a_step_has_room_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the 280 tokens of an image are computed in one step.*to at least 343"):
        most(tmp_path, 280, max_num_batched_tokens=342)
