"""Gemma 3n and 4 give transformers' logits: heads of several sizes in one cache, layers that read others' keys."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file

from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.errors import ModelError
from jaxllm.models.kv_shape import CacheLayout
from tests.models.stacks import in_stacks
from tests.models.test_families import Case, Stack, check, save
from tests.models.test_parity import SMALL

SLIDING, FULL = "sliding_attention", "full_attention"
ROPES = {
    SLIDING: {"rope_type": "default", "rope_theta": 100.0},
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 10_000.0},
}
SHARED = {
    "head_dim": 16,
    "global_head_dim": 32,
    "sliding_window": 5,
    "num_hidden_layers": 6,
    "layer_types": [SLIDING, SLIDING, FULL] * 2,
    "num_kv_shared_layers": 3,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 128,
    "use_double_wide_mlp": True,
    "final_logit_softcapping": 30.0,
    "rope_parameters": ROPES,
}
KEYS_FOR_VALUES = {
    "head_dim": 16,
    "global_head_dim": 32,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "sliding_window": 5,
    "num_hidden_layers": 5,
    "layer_types": [SLIDING, SLIDING, FULL, SLIDING, FULL],
    "rope_parameters": ROPES,
}
EXPERTS = {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 3, "moe_intermediate_size": 24}

CASES = {
    "gemma3n": Case(
        "Gemma3nText",
        {
            "head_dim": 16,
            "sliding_window": 5,
            "num_hidden_layers": 6,
            "intermediate_size": [96, 96, 48, 96, 96, 48],
            "layer_types": [SLIDING, SLIDING, FULL] * 2,
            "num_kv_shared_layers": 3,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 120,
            "altup_num_inputs": 3,
            "altup_active_idx": 1,
            "laurel_rank": 6,
            "activation_sparsity_pattern": [0.6, 0.6, 0.0, 0.0, 0.0, 0.0],
        },
    ),
    "gemma4": Case("Gemma4Text", SHARED),
    # Two layers with a window have the keys and values of one without in float32, and four of them here.
    "gemma4-narrow": Case("Gemma4Text", {**SHARED, "global_head_dim": 64, "num_key_value_heads": 1}),
    "gemma4-experts": Case("Gemma4Text", {**KEYS_FOR_VALUES, **EXPERTS, "hidden_size_per_layer_input": 0}),
    "gemma4_unified": Case("Gemma4UnifiedText", KEYS_FOR_VALUES),
}


def save_random(folder: Path, case: Case) -> torch.nn.Module:
    """The same as `save`, with layers whose results are multiplied by other numbers than 1."""
    model = save(folder, case)
    torch.manual_seed(1)
    with torch.no_grad():
        for name, tensor in model.named_buffers():
            if name.endswith("layer_scalar"):
                tensor.copy_(torch.rand_like(tensor) + 0.5)
    model.save_pretrained(folder)
    return model


NESTED = "Gemma3nForConditionalGeneration"
"""Its vision needs packages that are not here: what is compared is a text model in its names."""


def test_the_language_model_of_one_that_sees(tmp_path: Path) -> None:
    model = save_random(tmp_path, CASES["gemma3n"])
    path, weights = tmp_path / "config.json", tmp_path / "model.safetensors"
    text = json.loads(path.read_text())
    path.write_text(json.dumps({"architectures": [NESTED], "text_config": text, "vision_config": {"hidden_size": 8}}))
    tensors = {name.replace("model.", "model.language_model.", 1): value for name, value in load_file(weights).items()}
    unused = np.zeros((2, 2), np.float32)
    others = ("model.vision_tower.a", "model.embed_audio.b", "model.language_model.layers.5.self_attn.k_proj.weight")
    save_file(tensors | dict.fromkeys(others, unused), weights)
    check(tmp_path, model)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("gemma4", {"num_kv_shared_layers": 6}, "'num_kv_shared_layers' is 6, which leaves no layer of type"),
        ("gemma4", {"per_layer_config": {"2": {"head_dim": 64}}}, "'per_layer_config' must be the same for all layers"),
        ("gemma4", {"per_layer_config": {str(layer): {"head_dim": 2 * 8191} for layer in (2, 5)}}, "a page would hold"),
        ("gemma4", {"per_layer_config": {str(layer): {"head_dim": 31} for layer in (2, 5)}}, "the size must be even"),
        ("gemma3n", {"altup_active_idx": 3}, "'altup_active_idx' must be below 'altup_num_inputs', 3"),
        ("gemma3n", {"intermediate_size": [96]}, "'intermediate_size' must be 6 positive integers"),
        ("gemma3n", {"activation_sparsity_pattern": [1.0] * 6}, "'activation_sparsity_pattern' must be 6 numbers"),
        ("gemma3n", {"hidden_size_per_layer_input": 0}, "'hidden_size_per_layer_input' must be at least 1"),
    ],
)
def test_what_cannot_be_is_an_error(tmp_path: Path, name: str, changes: dict[str, Any], message: str) -> None:
    config = getattr(transformers, f"{CASES[name].name}Config")(**{**SMALL, **CASES[name].options})
    values = json.loads(config.to_json_string(use_diff=False)) | {"architectures": [CASES[name].name + "ForCausalLM"]}
    values["architectures"] = [values["architectures"][0].replace("Text", "")]
    (tmp_path / "config.json").write_text(json.dumps({**values, **changes}))
    with pytest.raises(ModelError, match=message):
        CacheLayout("xla", "float32").plan(read_config(tmp_path), by_window=True)


SOON = {"gemma3n", "gemma4", "gemma4-experts"}


@in_stacks(CASES, SOON)
def test_logits(tmp_path: Path, name: str, stack: Stack) -> None:
    check(tmp_path, save_random(tmp_path, CASES[name]), stack)
