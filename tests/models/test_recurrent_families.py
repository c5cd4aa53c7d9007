"""Families with recurrent layers give transformers' logits, as those in `test_families` do."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file

from jaxllm.models.checkpoint.model_config import read_config
from tests.models.stacks import in_stacks
from tests.models.test_families import Case, Stack, Tensors, check, randomise, save
from tests.models.test_parity import SMALL

FULL, LINEAR, SLIDING, INDEXED = "full_attention", "linear_attention", "sliding_attention", "indexed_attention"
DELTA = {
    # What a head gives may be near zero, and the norm after it would make much of the last bits.
    "rms_norm_eps": 1e-3,
    "num_hidden_layers": 3,
    "layer_types": [LINEAR, LINEAR, FULL],
    "head_dim": 16,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
}
EXPERTS = {
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
}

MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 8}
BESIDE = {"mamba_n_heads": 8, "mamba_d_head": 12, "mamba_d_ssm": 96, "mamba_d_state": 8, "rms_norm_eps": 1e-3}
MUP = {
    "embedding_multiplier": 2.0,
    "lm_head_multiplier": 0.5,
    "key_multiplier": 0.4,
    "attention_in_multiplier": 1.5,
    "attention_out_multiplier": 0.8,
    "ssm_in_multiplier": 1.25,
    "ssm_out_multiplier": 0.7,
    "mlp_multipliers": [0.9, 0.6],
    "ssm_multipliers": [0.35, 0.5, 0.7, 1.5, 0.3],
}
SCAN = {"state_size": 8, "intermediate_size": 128, "time_step_rank": 6}
SCALES = {"embedding_multiplier": 2.0, "attention_multiplier": 0.3, "residual_multiplier": 0.4, "logits_scaling": 0.5}

CASES = {
    "bailing_hybrid": Case(
        "BailingHybrid",
        {
            "rms_norm_eps": 1e-3,
            "num_hidden_layers": 3,
            "layer_group_size": 3,
            "head_dim": 12,
            "kv_lora_rank": 24,
            "qk_nope_head_dim": 12,
            "qk_rope_head_dim": 8,
            "v_head_dim": 20,
            "num_key_value_heads": 4,
            "num_local_experts": 8,
            "num_experts_per_tok": 3,
            "n_group": 4,
            "topk_group": 2,
            "moe_intermediate_size": 24,
        },
    ),
    "bamba": Case("Bamba", {**MAMBA, "attn_layer_indices": [1], "num_hidden_layers": 3, "mamba_proj_bias": True}),
    "granite4": Case(
        "GraniteMoeHybrid",
        {
            **MAMBA,
            **SCALES,
            "layer_types": [LINEAR, LINEAR, FULL],
            "num_hidden_layers": 3,
            "num_local_experts": 4,
            "shared_intermediate_size": 40,
            "mamba_n_groups": 4,
        },
    ),
    "granite4-dense": Case(
        "GraniteMoeHybrid",
        {
            **MAMBA,
            **SCALES,
            "layer_types": [FULL, LINEAR],
            "num_local_experts": 0,
            "shared_intermediate_size": 40,
            "position_embedding_type": "rope",
        },
    ),
    "falcon_h1": Case("FalconH1", {**BESIDE, **MUP}),
    "falcon_h1-norms": Case(
        "FalconH1",
        {**BESIDE, "mamba_rms_norm": True, "mamba_n_groups": 4, "attention_bias": True, "mamba_proj_bias": True}
        | {"projectors_bias": True, "time_step_limit": (0.2, 1.0)},
    ),
    "falcon_mamba": Case("FalconMamba", {**SCAN, "mixer_rms_eps": 1e-3}),
    "jamba": Case(
        "Jamba",
        {
            "num_hidden_layers": 4,
            "attn_layer_period": 4,
            "attn_layer_offset": 2,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "num_experts": 4,
            "mamba_d_state": 8,
            "mamba_dt_rank": 6,
            "mamba_proj_bias": True,
        },
    ),
    "kimi_linear": Case(
        "KimiLinear",
        {
            "rms_norm_eps": 1e-3,
            "num_hidden_layers": 3,
            "layer_types": [LINEAR, FULL, LINEAR],
            "mlp_layer_types": ["dense", "sparse", "sparse"],
            "linear_num_heads": 4,
            "linear_head_dim": 12,
            "kv_lora_rank": 24,
            "qk_nope_head_dim": 12,
            "qk_rope_head_dim": 8,
            "v_head_dim": 20,
            "num_key_value_heads": 4,
            "num_local_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
        },
    ),
    "lara_mini": Case(
        "LaraMini",
        {
            **DELTA,
            **EXPERTS,
            "num_hidden_layers": 4,
            "layer_types": [LINEAR, SLIDING, LINEAR, FULL],
            "sliding_window": 5,
            "tie_word_embeddings": False,
        },
    ),
    "lfm3": Case(
        "Lfm3",
        {
            "layer_types": ["conv", SLIDING, FULL, "conv"],
            "num_hidden_layers": 4,
            "head_dim": 16,
            "sliding_window": 5,
            "conv_bias": True,
            "attention_bias": True,
            "tie_word_embeddings": False,
        },
    ),
    "mamba": Case("Mamba", {**SCAN, "use_bias": True}),
    "mamba2": Case(
        "Mamba2", {"num_heads": 8, "head_dim": 16, "state_size": 8, "n_groups": 4, "time_step_limit": (0.2, 1.0)}
    ),
    "minimax": Case(
        "MiniMax",
        {
            "num_hidden_layers": 4,
            "layer_types": [LINEAR, FULL, LINEAR, FULL],
            "num_local_experts": 6,
            "head_dim": 16,
            "full_attn_alpha_factor": 1.3,
            "full_attn_beta_factor": 0.7,
            "linear_attn_alpha_factor": 1.2,
            "linear_attn_beta_factor": 0.8,
            "mlp_alpha_factor": 0.9,
            "mlp_beta_factor": 1.1,
        },
    ),
    "nemotron_h": Case(
        "NemotronH",
        {
            "layers_block_type": [LINEAR, "moe", LINEAR, FULL, "mlp", LINEAR, "moe"],
            "num_hidden_layers": 7,
            "head_dim": 16,
            "mamba_num_heads": 8,
            "mamba_head_dim": 16,
            "ssm_state_size": 8,
            "n_groups": 4,
            "time_step_min": 0.3,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 1.5,
            "moe_intermediate_size": 24,
            "moe_shared_expert_intermediate_size": 40,
        },
    ),
    "olmo_hybrid": Case(
        "OlmoHybrid",
        {
            "num_hidden_layers": 3,
            "layer_types": [LINEAR, LINEAR, FULL],
            "linear_num_key_heads": 4,
            "linear_num_value_heads": 8,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 12,
            "rms_norm_eps": 1e-3,
        },
    ),
    "recurrent_gemma": Case(
        "RecurrentGemma",
        {
            "num_hidden_layers": 4,
            "block_types": ["recurrent", "attention"],
            "attention_window_size": 5,
            "lru_width": 96,
            "logits_soft_cap": 8.0,
        },
    ),
    "qwen3_next": Case("Qwen3Next", {**DELTA, **EXPERTS, "mlp_only_layers": [1]}),
    "qwen3_5": Case("Qwen3_5Text", DELTA),
    "rwkv": Case(
        "Rwkv",
        {"num_hidden_layers": 3, "context_length": 64, "rescale_every": 1, "layer_norm_epsilon": 1e-3},
    ),
    "xlstm": Case(
        "xLSTM",
        # The norm after a memory would make much of the last bits. transformers rounds up sizes of its cache.
        {"hidden_size": 128, "num_heads": 4, "norm_eps": 1e-3, "ffn_proj_factor": 0.7, "output_logit_soft_cap": 8.0},
    ),
    "zamba": Case(
        "Zamba",
        {
            "layers_block_type": [LINEAR, "hybrid", LINEAR, "hybrid"],
            "num_hidden_layers": 4,
            "n_mamba_heads": 4,
            "mamba_d_state": 8,
            "mamba_dt_rank": 6,
            "num_key_value_heads": 4,
            "mamba_proj_bias": True,
        },
        rescaled=0.6,
    ),
    "zamba2": Case(
        "Zamba2",
        {
            "layers_block_type": [LINEAR, "hybrid", "hybrid", "hybrid"],
            "num_hidden_layers": 4,
            "n_mamba_heads": 8,
            "mamba_d_state": 8,
            "mamba_ngroups": 4,
            "num_mem_blocks": 2,
            "num_key_value_heads": 4,
            "adapter_rank": 6,
            "use_shared_attention_adapter": True,
            "use_mem_rope": True,
            "time_step_min": 0.2,
        },
        # With larger weights transformers is as far from its own result in float64 as the tolerance.
        rescaled=0.6,
    ),
    "zamba2-plain": Case(
        "Zamba2",
        {
            "layers_block_type": ["hybrid", LINEAR, "hybrid"],
            "num_hidden_layers": 3,
            "n_mamba_heads": 8,
            "mamba_d_state": 8,
            "num_key_value_heads": 4,
            "adapter_rank": 6,
            "add_bias_linear": True,
        },
        rescaled=0.6,
    ),
    # At 1e-3 the norm of one position makes 1.3e-4 of the last bits, in the loop alone.
    "qwen3_5_moe": Case("Qwen3_5MoeText", {**DELTA, **EXPERTS, "rms_norm_eps": 1e-2}),
    "qwen4_exp": Case(
        "Qwen4ExpText",
        {
            **DELTA,
            **EXPERTS,
            "rms_norm_eps": 1e-2,
            "num_hidden_layers": 4,
            "layer_types": [LINEAR, INDEXED, LINEAR, INDEXED],
            "hc_count": 3,
            "hc_lowrank": 12,
            "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.25},
            "output_gate_type": "sigmoid",
            # With fewer heads two groups may have the same score, zero.
            "indexer_n_heads": 16,
            "indexer_kv_heads": 1,
            "indexer_head_dim": 8,
            "indexer_budget": 9,
            "indexer_compress_ratio": 3,
            "ple_layer_ids": [1, 3],
            "ple_embed_dim": 24,
            "ple_conv_kernel_size": 3,
            "heads_per_ngram": 2,
            "ngram_vocab_size_base": 50,
            "make_ngram_vocab_size_divisible_by": 8,
            "split_ngram_parts": 3,
            # Prompts have it three times, and n-grams begin again after it.
            "eos_token_id": 96,
        },
    ),
}


def save_random(folder: Path, case: Case) -> torch.nn.Module:
    """The same as `save`, with decays near enough to 1 that what was long ago still counts."""
    model = save(folder, case)
    slow_decays(model)
    model.save_pretrained(folder)
    weights = folder / "model.safetensors"
    if case.name == "OlmoHybrid":
        save_file(as_olmo_hybrid(load_file(weights), model), weights)
    if case.name == "KimiLinear":
        # transformers 5.24 writes dense layers otherwise than it reads them.
        dense = ("block_sparse_moe.gate_proj", "block_sparse_moe.up_proj", "block_sparse_moe.down_proj")
        values = load_file(weights).items()
        save_file({_renamed(name, dense): value for name, value in values}, weights)
    return model


def _renamed(name: str, dense: tuple[str, ...]) -> str:
    return name.replace("block_sparse_moe", "mlp") if any(part in name for part in dense) else name


def as_olmo_hybrid(values: Tensors, model: torch.nn.Module) -> Tensors:
    """The same as in published checkpoints: transformers 5.24 writes a norm and convolutions in another way."""
    made = {name: value for name, value in values.items() if "conv1d" not in name}
    for number, layer in enumerate(model.model.layers):
        prefix = f"model.layers.{number}."
        if not hasattr(layer, "linear_attn"):
            made[f"{prefix}post_attention_layernorm.weight"] = made.pop(f"{prefix}feedforward_layer_norm.weight")
            continue
        mixer = layer.linear_attn
        parts = mixer.conv1d.weight.detach().split([mixer.key_dim, mixer.key_dim, mixer.value_dim])
        for name, part in zip("qkv", parts, strict=True):
            made[f"{prefix}linear_attn.{name}_conv1d.weight"] = part.contiguous().numpy()
    return made


def slow_decays(model: torch.nn.Module) -> None:
    """Give parameters of recurrences values with which what was long ago still counts."""
    torch.manual_seed(1)
    with torch.no_grad():
        for name, tensor in [*model.named_buffers(), *model.named_parameters()]:
            if name.endswith("correction_bias"):
                tensor.copy_(torch.randn_like(tensor) * 0.15)
            elif name.endswith("A_log"):
                tensor.copy_(torch.randn_like(tensor) * 0.5 - 1.0)
            elif name.endswith("recurrent_param"):
                tensor.copy_(torch.randn_like(tensor) - 4.0)
            elif "conv1d" in name or "conv_1d" in name:
                tensor.copy_(torch.randn_like(tensor) * 0.3)


SOON = {"falcon_h1", "jamba", "mamba2", "qwen3_next", "zamba2"}
"""Those of the fast part: one of each recurrence, with attention and without, and experts."""


@in_stacks(CASES, SOON)
def test_logits(tmp_path: Path, name: str, stack: Stack) -> None:
    check(tmp_path, save_random(tmp_path, CASES[name]), stack)


def test_nemotron_h_has_an_output_layer_of_its_own_whatever_is_said(tmp_path: Path) -> None:
    case = CASES["nemotron_h"]
    save_random(tmp_path, replace(case, options={**case.options, "tie_word_embeddings": True}))
    assert not read_config(tmp_path).tie_word_embeddings


SEEING = {
    "qwen3_5": (transformers.Qwen3_5Config, transformers.Qwen3_5ForConditionalGeneration),
    "qwen3_5_moe": (transformers.Qwen3_5MoeConfig, transformers.Qwen3_5MoeForConditionalGeneration),
    "qwen4_exp": (transformers.Qwen4ExpConfig, transformers.Qwen4ExpForConditionalGeneration),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SEEING)
def test_the_language_model_of_one_that_sees(tmp_path: Path, name: str) -> None:
    config_class, model_class = SEEING[name]
    vision = {"hidden_size": 16, "intermediate_size": 16, "depth": 1, "num_heads": 2, "out_hidden_size": 64}
    # With other random weights the norm after a recurrence makes more of the last bits.
    text = {**SMALL, **CASES[name].options, "tie_word_embeddings": False, "rms_norm_eps": 0.1}
    config = config_class(
        text_config=text, vision_config=vision, tie_word_embeddings=False, attn_implementation="eager"
    )
    model = model_class(config).eval()
    randomise(model)
    slow_decays(model)
    model.save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    save_file(experts_in_one(load_file(weights)), weights)
    check(tmp_path, model)


def experts_in_one(values: Tensors) -> Tensors:
    """The same with the experts of a layer in two tensors, as published checkpoints have them."""
    made = {name: value for name, value in values.items() if ".experts." not in name}
    blocks = {name.partition(".experts.")[0] for name in values if ".experts." in name}
    for block in blocks:
        gates, ups, downs = (
            np.stack([values[f"{block}.experts.{expert}.{part}_proj.weight"] for expert in range(8)])
            for part in ("gate", "up", "down")
        )
        made |= {f"{block}.experts.gate_up_proj": np.concatenate([gates, ups], axis=1)}
        made |= {f"{block}.experts.down_proj": downs}
    return made
