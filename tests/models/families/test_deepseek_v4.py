"""DeepSeek V4's cache, and configurations of it that are errors."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxllm.config import EngineConfig
from jaxllm.errors import ConfigError
from jaxllm.executor.resolve import resolve_config
from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.errors import ModelError
from jaxllm.models.kv_shape import CacheLayout, widest_row
from tests.models.families.test_published_decoders import PUBLISHED, read

FLASH = PUBLISHED["DeepSeek-V4-Flash"]


@pytest.mark.parametrize("by_window", [True, False])
@pytest.mark.parametrize("page_size", [4, 16, 256])
def test_nothing_in_a_page_overlaps(tmp_path: Path, page_size: int, by_window: bool) -> None:
    model = read(tmp_path, FLASH)
    plan = CacheLayout("xla", "bfloat16").plan(model, by_window=by_window)
    assert len(plan.windows) <= 16
    page = page_size * widest_row(model)
    used = np.zeros((len(plan.windows), plan.depth, page), np.int32)
    for layer, entry in enumerate(plan.entries):
        attention = model.layers[layer].attention
        needed = [(plan.tables[layer], plan.places[layer], plan.shares[layer], plan.parts[layer], page_size)]
        sizes, windows = [attention.row_units], [attention.window if by_window else 0]
        if entry is not None:
            per_page = max(page_size // attention.compression.rate, 1)
            needed.append((entry.table, entry.place, entry.share, entry.part, per_page))
            sizes, windows = [*sizes, attention.entry_units], [*windows, 0]
        for (table, place, share, part, count), size, window in zip(needed, sizes, windows, strict=True):
            begin = part * (page // share)
            used[table, place, begin : begin + count * size] += 1
            assert begin + count * size <= page
            if by_window:
                assert plan.windows[table] == window
    assert used.max() == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sliding_window": 64}, "'sliding_window' must be at least 128 .*'heavily_compressed_attention' = 128"),
        ({"compress_ratios": [0] * 42 + [8]}, "'layer_types' must be 43 of 'sliding_attention', "),
        ({"mlp_layer_types": ["moe"]}, "'mlp_layer_types' must be 43 of 'hash_moe' and 'moe'"),
        ({"o_groups": 7}, "'o_groups' must be a divisor of 'num_attention_heads' = 64"),
        ({"scoring_func": "tanh"}, "'scoring_func' must be 'sqrtsoftplus' or 'softmax' or 'sigmoid'"),
        ({"expert_dtype": "fp4"}, "'expert_dtype' must be 'bf16' or 'fp8': experts in 4 bits are not supported"),
        ({"num_experts_per_tok": 300}, "'num_experts_per_tok' must be at most 'n_routed_experts' = 256"),
    ],
)
def test_what_cannot_be_is_an_error(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read(tmp_path, {**FLASH, **changes})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_size": 2}, "block_size=2: must be at least 4, because cache entries"),
        ({"block_size": 24}, "block_size=24: must be at least 4, and a divisor or a multiple of 128"),
        (
            {"kv_cache_dtype": "fp8"},
            "kv_cache_dtype='fp8_e4m3': DeepseekV4ForCausalLM makes cache entries of what is cached",
        ),
        ({"enable_prompt_embeds": True}, "layers of DeepseekV4ForCausalLM choose experts by token IDs"),
    ],
)
def test_options_that_it_does_not_support(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(FLASH))
    assert read_config(tmp_path).compressed
    options = {
        "model": str(tmp_path),
        "load_format": "dummy",
        "max_model_len": 512,
    } | options
    with pytest.raises(ConfigError, match=message):
        resolve_config(EngineConfig.from_options(options))
