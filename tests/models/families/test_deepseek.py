"""Configurations of DeepSeek's models that cannot be computed are errors that name the option."""

import json
from pathlib import Path
from typing import Any

import pytest

from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.errors import ModelError
from jaxllm.models.mlp_plan import ExpertsPlan

CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 20,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
}


V32: dict[str, Any] = {"architectures": ["DeepseekV32ForCausalLM"]}
GLM5: dict[str, Any] = {"architectures": ["GlmMoeDsaForCausalLM"]}


def read(folder: Path, **changes: Any) -> Any:
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    return read_config(folder)


def test_dense_layers_come_first(tmp_path: Path) -> None:
    layers = read(tmp_path).layers
    assert [isinstance(layer.mlp, ExpertsPlan) for layer in layers] == [False, True, True]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_key_value_heads": 2}, "'num_key_value_heads' must be 4, as many as 'num_attention_heads'"),
        ({"n_group": 3}, "'n_group' must be a divisor of 'n_routed_experts' = 8"),
        ({"n_group": 8}, "'n_group' must be .* with 2 or more in a group"),
        ({"topk_group": 1}, "'topk_group' must be .* enough groups for 'num_experts_per_tok'"),
        ({"topk_group": 5}, "'topk_group' must be at most 'n_group'"),
        ({"num_experts_per_tok": 9}, "'topk_group'|9 experts per token"),
        ({"scoring_func": "softmax"}, "'scoring_func' must be 'sigmoid'"),
        ({"topk_method": "greedy"}, "'topk_method' must be 'noaux_tc'"),
        ({"moe_layer_freq": 2}, "'moe_layer_freq' must be 1"),
        ({"kv_lora_rank": -1}, "'kv_lora_rank' must be at least 1"),
        ({"kv_lora_rank": None}, "'kv_lora_rank' is missing"),
        ({"qk_rope_head_dim": 7}, "head size 7"),
        ({"index_topk": 2048}, "option 'index_topk'"),
        ({"n_shared_experts": 0}, "'n_shared_experts' must be at least 1"),
        ({"architectures": ["Glm4MoeLiteForCausalLM"], "n_shared_experts": 0}, "'n_shared_experts' must be at least 1"),
        ({"architectures": ["DeepseekV2ForCausalLM"], "norm_topk_prob": True}, "'norm_topk_prob' must be False"),
        ({"architectures": ["DeepseekV2ForCausalLM"], "topk_method": "noaux_tc"}, "'topk_method' must be 'greedy' or"),
        ({"architectures": ["Glm4MoeLiteForCausalLM"], "mlp_layer_types": ["dense"]}, "'mlp_layer_types' must be"),
        ({**V32, "index_head_dim": 4}, "'index_head_dim' must be at least 'qk_rope_head_dim' = 8"),
        ({**V32, "index_topk": 0}, "'index_topk' must be at least 1"),
        ({**V32, "q_lora_rank": None}, "'q_lora_rank' must be given"),
        ({**V32, "rope_interleave": False}, "'rope_interleave' must be true"),
        ({**V32, "layer_types": ["full_attention"] * 3}, "'layer_types' must be 'indexed_attention' for every layer"),
        ({**GLM5, "indexer_types": ["shared", "full", "full"]}, "'indexer_types' must be 'full' for the first layer"),
        ({**GLM5, "indexer_types": ["full", "none", "full"]}, "'indexer_types' must be 3 times 'full' or 'shared'"),
        ({**GLM5, "index_topk_pattern": "FS"}, "'index_topk_pattern' must be 3 times 'full' or 'shared'"),
        ({**GLM5, "index_topk_freq": 2, "index_skip_topk_offset": 0}, "'index_topk_freq' must be 'full' for the first"),
        ({**GLM5, "indexer_rope_interleave": False}, "'indexer_rope_interleave' must be true"),
    ],
)
def test_what_cannot_be_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read(tmp_path, **changes)


@pytest.mark.parametrize(
    ("changes", "shared"),
    [
        ({}, "FFF"),
        ({"index_topk_freq": 4}, "FFS"),
        ({"index_topk_freq": 2, "index_skip_topk_offset": 1}, "FSF"),
        ({"index_topk_pattern": "FSS"}, "FSS"),
        ({"indexer_types": ["full", "shared", "full"]}, "FSF"),
    ],
)
def test_layers_that_share_a_choice_of_keys(tmp_path: Path, changes: dict[str, Any], shared: str) -> None:
    layers = read(tmp_path, **GLM5, **changes).layers
    assert ["FS"[layer.attention.shares_choice] for layer in layers] == list(shared)
