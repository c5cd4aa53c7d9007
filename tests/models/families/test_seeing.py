"""Configurations of models that see: defaults are those of transformers, and what is not supported is an error."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.errors import ModelError
from jaxllm.models.towers.vision_transformer import TransformerPlan

PIXTRAL = {"model_type": "pixtral", "rope_theta": 10000.0, "is_composition": True}
CAUSAL = ("Phi3V",)
"""Names that end otherwise than most."""
PHI3V = {"use_hd_transform": True, "with_learnable_separator": True, "hd_transform_order": "sub_glb"}
SPARSE: dict[str, tuple[str, dict[str, Any]]] = {
    "llava": ("Llava", {"text_config": {"model_type": "llama", "vocab_size": 32064, "rms_norm_eps": 1e-5}}),
    "llava siglip": (
        "Llava",
        {"vision_config": {"model_type": "siglip_vision_model"}, "vision_feature_select_strategy": "full"},
    ),
    "llava next": ("LlavaNext", {"text_config": {"model_type": "mistral"}}),
    "onevision": ("LlavaOnevision", {"image_token_index": 151646}),
    "pixtral": (
        "Llava",
        {"vision_config": PIXTRAL, "vision_feature_layer": -1, "vision_feature_select_strategy": "full"},
    ),
    "internvl": ("InternVL", {"text_config": {"model_type": "qwen3"}}),
}


def read(folder: Path, name: str, values: dict[str, Any]) -> Any:
    use = "ForCausalLM" if name in CAUSAL else "ForConditionalGeneration"
    whole = {"architectures": [f"{name}{use}"], "dtype": "bfloat16", **values}
    (folder / "config.json").write_text(json.dumps(whole))
    return read_config(folder)


@pytest.mark.parametrize("case", SPARSE)
def test_what_files_leave_out(tmp_path: Path, case: str) -> None:
    name, values = SPARSE[case]
    wanted = getattr(transformers, f"{name}Config")(**values)
    found = read(tmp_path, name, values)
    text, vision, tower = wanted.text_config, wanted.vision_config, found.tower
    assert found.hidden_size == text.hidden_size
    assert found.intermediate_size == text.intermediate_size
    assert found.num_layers == text.num_hidden_layers
    assert found.num_kv_heads == text.num_key_value_heads
    assert found.vocab_size == text.vocab_size
    assert found.max_position_embeddings == text.max_position_embeddings
    plan = tower.vision
    assert isinstance(plan, TransformerPlan)
    pairs = [each if isinstance(each, tuple) else (each, each) for each in (vision.image_size, vision.patch_size)]
    assert (plan.side, plan.patch_size) == (pairs[0][0] // pairs[1][0], pairs[1][0])
    assert plan.hidden_size == vision.hidden_size
    assert plan.intermediate_size == vision.intermediate_size
    assert plan.num_heads == vision.num_attention_heads
    assert plan.activation == vision.hidden_act
    assert plan.num_layers == vision.num_hidden_layers + (1 + wanted.vision_feature_layer)
    assert tower.token_id == wanted.image_token_id


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("Llava", {"vision_feature_layer": 25}, "'vision_feature_layer' must be numbers from -25 to 24"),
        ("Llava", {"vision_feature_layer": []}, "'vision_feature_layer' must be numbers"),
        ("Llava", {"vision_feature_select_strategy": "both"}, "'vision_feature_select_strategy' must be 'full'"),
        ("Llava", {"vision_config": PIXTRAL}, "'vision_feature_select_strategy' must be 'full'"),
        ("Llava", {"vision_config": {"model_type": "dinov2"}}, "'model_type' must be one of clip_vision_model"),
        ("Llava", {"vision_config": {"image_size": 8}}, "'image_size' must be at least patch_size=32"),
        ("Llava", {"vision_config": {"num_attention_heads": 7}}, "a multiple of num_attention_heads=7"),
        ("Llava", {"vision_config": {"window_size": 7}}, "option 'window_size' = 7 is unknown"),
        ("Llava", {"text_config": {"model_type": "gpt2"}}, "'model_type' must be one of cohere2, "),
        ("Llava", {"projector_hidden_act": "wave"}, "'projector_hidden_act' must be one of"),
        ("LlavaNext", {"vision_feature_select_strategy": "full"}, "tiles are squares of patches"),
        ("InternVL", {"vision_feature_select_strategy": "full"}, "must be \"default\", found \"full\""),
        ("Llama4", {"vision_config": {"pixel_shuffle_ratio": 0.3}}, "1 / n, for a divisor n of 32"),
        ("Llama4", {"vision_config": {"hidden_act": "relu"}}, "'hidden_act' must be \"gelu\", found \"relu\""),
        ("Llama4", {"vision_config": {"rope_parameters": {"rope_type": "yarn"}}}, "'rope_type' must be \"default\""),
        ("Cohere2Vision", {"downsample_factor": 3}, "'downsample_factor' must be a divisor of 32"),
        ("Cohere2Vision", {"alignment_intermediate_size": 7}, "'alignment_intermediate_size' must be an even number"),
        (
            "GlmOcr",
            {"text_config": {"hidden_size": 1024, "num_attention_heads": 16, "attention_bias": True},
             "vision_config": {"out_hidden_size": 1024}},
            "'attention_bias' must be false, found true",
        ),
        ("Kimi_K25", {"projection_hidden_size": 7}, "'projection_hidden_size' must be 1152"),
        ("Kimi_K25", {"vision_config": {"merge_kernel_size": [2, 1]}}, "must be height and width of a square"),
        ("KimiK25", {"vision_config": {"merge_type": "none"}}, "'merge_type' must be \"sd2_tpool\""),
        ("KimiK25", {"vision_config": {"init_pos_emb_width": 32}}, "'init_pos_emb_width' must be 64, the height"),
        ("Lfm2Vl", {"text_config": {"model_type": "gpt2"}}, "'model_type' must be one of lfm2, lfm2_moe"),
        ("Phi3V", {"embd_layer": {"with_learnable_separator": True}}, "'use_hd_transform' must be true"),
        ("Phi3V", {"embd_layer": {**PHI3V, "hd_transform_order": "glb_sub"}}, "must be 'sub_glb'"),
        (
            "Phi3V",
            {"embd_layer": PHI3V, "img_processor": {"image_dim_out": 768}},
            "'image_dim_out' must be 1024, the hidden size of CLIP",
        ),
        ("Janus", {"vision_config": {"depth": 3}}, "'depth' must be 2"),
        ("Janus", {"vision_config": {"projection_dim": 64}}, "'projection_dim' must be 4096"),
        ("DeepseekOcr2", {}, "'downsample_channels' must be two numbers, the second being the encoder's"),
        (
            "DeepseekOcr2",
            {"vision_config": {"sam_config": {"image_size": 512, "downsample_channels": [512, 4096]}}},
            r"'image_size' must be 64 \* patch_size=16",
        ),
        (
            "DeepseekOcr2",
            {"vision_config": {"encoder_config": {"use_sliding_window": True}}},
            "'use_sliding_window' must be false",
        ),
        ("DeepseekVL", {"vision_config": {"model_type": "clip_vision_model"}}, "'model_type' must be siglip"),
        ("InternVL", {"downsample_ratio": 0.3}, "1 / n, for a divisor n of 32"),
        ("InternVL", {"vision_config": {"norm_type": "group"}}, "'norm_type' must be one of layer_norm, rms_norm"),
        ("InternVL", {"vision_config": {"image_size": [448, 224]}}, "must be height and width of a square"),
        (
            "InternVL",
            {"vision_config": {"norm_type": "rms_norm", "use_mean_pooling": False}},
            "'use_mean_pooling' must be true with norm_type=rms_norm",
        ),
    ],
)  # fmt: skip
def test_what_is_not_supported(tmp_path: Path, name: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read(tmp_path, name, values)


@pytest.mark.parametrize(("whole", "text", "tied"), [(False, True, True), (False, False, False), (True, False, True)])
def test_tied_embeddings(tmp_path: Path, whole: bool, text: bool, tied: bool) -> None:
    """Either part of a file may say it."""
    values = {"text_config": {"model_type": "qwen2", "tie_word_embeddings": text}, "tie_word_embeddings": whole}
    assert transformers.LlavaConfig(**values).tie_word_embeddings is tied
    assert read(tmp_path, "Llava", values).tie_word_embeddings is tied
