"""Options of families whose layers differ: what cannot be is an error, and spellings of published files are read."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from jaxllm.models.attention_plan import LatentAttentionPlan
from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.config import ModelConfig
from jaxllm.models.errors import ModelError
from jaxllm.models.recurrent_plan import ChannelDeltaPlan
from tests.models.every_family import FAMILIES
from tests.models.test_families import NESTED, class_of
from tests.models.test_parity import SMALL


def read(folder: Path, name: str, changes: dict[str, Any], absent: tuple[str, ...] = ()) -> ModelConfig:
    """The configuration of a family's case with these options, written as transformers does."""
    case = FAMILIES[name].case
    config_class, options = getattr(transformers, f"{case.name}Config"), {**SMALL, **case.options}
    is_nested = case.name in NESTED
    config = (
        config_class(text_config=options, vision_config=NESTED[case.name]) if is_nested else config_class(**options)
    )
    values = json.loads(config.to_json_string(use_diff=False))
    text = values["text_config"] if is_nested else values
    text |= changes
    for key in absent:
        del text[key]
    (folder / "config.json").write_text(json.dumps({**values, "architectures": [class_of(config_class).__name__]}))
    return read_config(folder)


FULL, LINEAR = "full", "linear_attention"


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("apertus1p5", {"output_vocab_size": 200}, "'output_vocab_size' must be at most 'vocab_size' = 128"),
        (
            "apertus1p5",
            {"tie_word_embeddings": True},
            "'output_vocab_size' must be 'vocab_size': 'tie_word_embeddings'",
        ),
        ("mistral_large4", {"indexer_types": [FULL] * 6}, "'kv_source_layers' must be of each layer itself or, if it"),
        ("mistral_large4", {"kv_source_layers": [0, 1, 2, 2, 4, 2]}, "'kv_source_layers' must be of each layer itself"),
        ("mistral_large4", {"no_rope_layers": [1]}, "'no_rope_layers' must be a list of 6 numbers"),
        ("mistral_large4", {"q_lora_rank": 16}, "'q_lora_rank' must be null"),
        ("mistral_large4", {"index_head_dim": 4}, "'index_head_dim' must be at least 'qk_rope_head_dim' = 8"),
        ("dots3_note", {"layer_types": ["chunked_attention"] * 5}, "'layer_types' must be a list of 5 of"),
        ("dots3_note", {"per_layer_config": {"1": {"num_attention_heads": 8}}}, "'num_key_value_heads' must be 8, as"),
        ("glm5_next", {"index_topk": 7}, "'index_topk' must be a multiple of 'index_kpool' = 3"),
        ("glm5_next", {"index_kpool_always_select_tail": False}, "'index_kpool_always_select_tail' must be true"),
        ("glm5_next", {"indexer_types": [FULL] * 4 + ["shared"]}, "'indexer_types' must be 'full' for a layer unless"),
        ("glm5_next", {"qk_rope_head_dim": 8}, "'qk_rope_head_dim' must be 0"),
        ("qwen4_exp", {"indexer_budget": 10}, "'indexer_budget' must be a multiple of 'indexer_compress_ratio' = 3"),
        ("qwen4_exp", {"indexer_head_dim": 2}, "'indexer_head_dim' must be an even number from 4, what is rotated"),
        ("qwen4_exp", {"ple_layer_ids": [1, 2]}, "'ple_layer_ids' must be numbers of 'linear_attention' layers"),
        ("qwen4_exp", {"ple_embed_dim": 30}, "'ple_embed_dim' must be a multiple of 4, as many tables as there are"),
        ("qwen4_exp", {"ngram_vocab_size_base": 2**30}, "'ngram_vocab_size_base' must be smaller: a layer's tables"),
        ("qwen4_exp", {"eos_token_id": None}, "'eos_token_id' must be given: it stands where n-grams begin"),
        ("qwen4_exp", {"output_gate_type": "relu"}, "'output_gate_type' must be 'silu' or 'sigmoid'"),
    ],
)
def test_what_cannot_be_is_an_error(tmp_path: Path, name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read(tmp_path, name, changes)


def test_windows_of_published_files(tmp_path: Path) -> None:
    """They have sizes with a prefix, and say by options of their own which layers have a window or an index."""
    own = {"use_dsa": False, "swa_kv_lora_rank": 48, "swa_num_attention_heads": 2, "swa_num_key_value_heads": 2}
    rest = {"rope_theta": 500.0, "swa_rope_theta": 20.0, "sliding_window_size": 7, "moe_layer_freq": [1, 1, 0, 1, 1]}
    absent = ("layer_types", "per_layer_config", "rope_parameters", "sliding_window", "mlp_layer_types")
    config = read(tmp_path, "dots3_note", {**own, **rest, "first_k_dense_replace": 1}, absent)
    plans = [layer.attention for layer in config.layers]
    assert [plan.window for plan in plans] == [0, 0, 7, 7, 7]
    assert all(isinstance(plan, LatentAttentionPlan) and plan.index is None for plan in plans)
    assert [plan.rope.theta for plan in plans if plan.rope] == [500.0, 500.0, 20.0, 20.0, 20.0]
    windowed = plans[2]
    assert isinstance(windowed, LatentAttentionPlan)
    assert (windowed.rank, windowed.num_heads, windowed.plain_size, windowed.rope_size) == (48, 2, 192, 64)
    assert [type(layer.mlp).__name__ for layer in config.layers] == [
        *("MLPPlan", "ExpertsPlan", "MLPPlan", "ExpertsPlan", "ExpertsPlan"),
    ]


def test_numbers_of_layers_may_have_zeros_before_them(tmp_path: Path) -> None:
    """As transformers writes them where there are ten layers or more."""
    own = {f"{layer:02d}": {"num_attention_heads": 2, "num_key_value_heads": 2} for layer in (1, 3)}
    config = read(tmp_path, "dots3_note", {"per_layer_config": own})
    assert [layer.attention.num_heads for layer in config.layers] == [4, 2, 4, 2, 4]


@pytest.mark.parametrize(
    ("section", "lowest"), [({"gate_lower_bound": -2.0}, -2.0), ({}, None), ({"safe_gate": True}, -5.0)]
)
def test_the_recurrence_of_published_files(tmp_path: Path, section: dict[str, Any], lowest: float | None) -> None:
    sizes = {"head_dim": 8, "num_heads": 2, "short_conv_kernel_size": 3, "safe_gate": False, **section}
    changes = {"linear_attn_config": sizes, "linear_lower_bound": None}
    plan = read(tmp_path, "glm5_next", changes).layers[0].recurrence
    assert isinstance(plan, ChannelDeltaPlan)
    assert (plan.head_size, plan.heads, plan.width, plan.lowest_decay) == (8, 2, 3, lowest)
