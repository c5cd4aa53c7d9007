"""Families with experts give transformers' logits, as those in `test_families` do."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.numpy import load_file, save_file
from transformers.activations import ACT2FN
from transformers.models.mixtral.modeling_mixtral import MixtralDecoderLayer, MixtralRMSNorm

from tests.models.stacks import in_stacks
from tests.models.test_families import LATENT, LOCAL_AND_GLOBAL, Case, Stack, check, randomise, save

EIGHT = {"num_experts": 8, "num_experts_per_tok": 3}
EIGHT_LOCAL = {"num_local_experts": 8, "num_experts_per_tok": 3}
YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16}
INDEX = {"index_topk": 6, "index_n_heads": 8, "index_head_dim": 12}
INDEXED = "indexed_attention"
WINDOWED = {
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "q_lora_rank": 12,
    "kv_lora_rank": 40,
    "head_dim": 24,
    "qk_nope_head_dim": 20,
    "qk_rope_head_dim": 4,
    "v_head_dim": 12,
}
COMPRESSED = {
    "head_dim": 16,
    "qk_rope_head_dim": 8,
    "num_key_value_heads": 1,
    "q_lora_rank": 24,
    "o_groups": 4,
    "o_lora_rank": 12,
    # With fewer heads two keys of an index may have the same score, zero.
    "index_n_heads": 16,
    "index_head_dim": 12,
    "index_topk": 3,
    "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 8},
    "sliding_window": 8,
    "num_hidden_layers": 5,
    "layer_types": [
        "sliding_attention",
        "compressed_sparse_attention",
        "heavily_compressed_attention",
        "compressed_sparse_attention",
        "heavily_compressed_attention",
    ],
    "mlp_layer_types": ["hash_moe", "moe", "moe", "moe", "moe"],
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "swiglu_limit": 0.5,
    "hc_mult": 3,
    "hc_sinkhorn_iters": 4,
    "compress_rope_theta": 1000.0,
    "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
}
LONG = {"rope_type": "longrope", "rope_theta": 100.0, "short_mscale": 1.2, "long_mscale": 1.2}

CASES = {
    "afmoe": Case(
        "Afmoe",
        {
            **EIGHT,
            "head_dim": 16,
            "moe_intermediate_size": 24,
            "num_hidden_layers": 4,
            "sliding_window": 5,
            "route_scale": 1.5,
            "mup_enabled": True,
            "attention_bias": True,
        },
    ),
    "aria": Case(
        "AriaText",
        {"moe_num_experts": 6, "moe_topk": 3, "attention_bias": True, "mlp_bias": True, "hidden_act": "gelu"},
    ),
    "axk1": Case("AXK1", {**LATENT, "q_lora_rank": 16, "num_hidden_layers": 3, "n_group": 4, "topk_group": 2}),
    "axk2": Case(
        "AXK2",
        # With fewer heads two keys may have the same score, zero.
        {**LATENT, **INDEX, "q_lora_rank": 16, "num_hidden_layers": 3, "n_group": 4, "topk_group": 2}
        | {
            "index_n_heads": 16,
            "gated_norm_rank": 4,
            "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
        },
    ),
    "cohere2_moe": Case(
        "Cohere2Moe",
        {
            **EIGHT,
            "head_dim": 16,
            "logit_scale": 0.7,
            "num_hidden_layers": 5,
            "sliding_window": 5,
            "first_k_dense_replace": 1,
            "prefix_dense_intermediate_size": 40,
            "num_shared_experts": 2,
            "expert_selection_fn": "sigmoid",
        },
    ),
    "cohere2_moe-sum": Case(
        "Cohere2Moe",
        {**EIGHT, "head_dim": 16, "logit_scale": 0.7, "sliding_window": 5, "rms_norm_eps": 1e-5}
        | {"num_shared_experts": 1, "shared_expert_combination_strategy": "sum"},
    ),
    "dbrx": Case(
        "Dbrx",
        {
            "d_model": 64,
            "n_heads": 4,
            "n_layers": 2,
            "max_seq_len": 64,
            "attn_config": {"kv_n_heads": 2, "clip_qkv": 1.0, "rope_theta": 100.0},
            "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2},
            "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
        },
    ),
    "deepseek_v2": Case(
        "DeepseekV2",
        {
            **LATENT,
            "q_lora_rank": 16,
            "num_hidden_layers": 3,
            "first_k_dense_replace": 1,
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 2.5,
            "rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.7},
        },
    ),
    "deepseek_v2-lite": Case("DeepseekV2", {**LATENT, "q_lora_rank": None, "attention_bias": True}),
    "deepseek_v3": Case(
        "DeepseekV3",
        {
            **LATENT,
            "q_lora_rank": 16,
            "num_hidden_layers": 3,
            "first_k_dense_replace": 1,
            "n_group": 4,
            "topk_group": 2,
            "attention_bias": True,
            "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
        },
    ),
    "deepseek_v3-moonlight": Case(
        "DeepseekV3",
        {
            **LATENT,
            "q_lora_rank": None,
            "first_k_dense_replace": 1,
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": False,
            "rope_interleave": False,
        },
    ),
    "deepseek_v32": Case(
        "DeepseekV32",
        {
            **LATENT,
            **INDEX,
            "q_lora_rank": 16,
            "num_hidden_layers": 3,
            "first_k_dense_replace": 1,
            "n_group": 4,
            "topk_group": 2,
            "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
        },
    ),
    "deepseek_v4": Case("DeepseekV4", COMPRESSED),
    "glm_moe_dsa": Case("GlmMoeDsa", {**LATENT, **INDEX, "q_lora_rank": 16, "mlp_layer_types": ["sparse", "dense"]}),
    "glm_moe_dsa-shared": Case(
        "GlmMoeDsa",
        # With fewer heads two keys may have the same score, zero.
        {**LATENT, **INDEX, "index_n_heads": 16, "q_lora_rank": 16, "num_hidden_layers": 5}
        | {"index_topk_pattern": "FFSSF", "mlp_layer_types": ["dense", "sparse", "sparse", "sparse", "dense"]},
    ),
    "glm4_moe_lite": Case("Glm4MoeLite", {**LATENT, "q_lora_rank": 16, "mlp_layer_types": ["sparse", "dense"]}),
    "dots1": Case(
        "Dots1",
        {
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "num_hidden_layers": 3,
            "first_k_dense_replace": 1,
            "n_shared_experts": 2,
            "routed_scaling_factor": 1.5,
            "sliding_window": 5,
            "max_window_layers": 2,
        },
    ),
    "flint": Case(
        "Flint",
        {
            **EIGHT,
            "head_dim": 16,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 40,
            "num_hidden_layers": 5,
            "sliding_window": 5,
        },
    ),
    "flex_olmo": Case("FlexOlmo", {**EIGHT, "norm_topk_prob": True}),
    "dots3_note": Case(
        "Dots3NoteText",
        # As with GLM-5.
        {**LATENT, **INDEX, "index_n_heads": 16, "q_lora_rank": 16, "num_hidden_layers": 5, "sliding_window": 5}
        | {
            "layer_types": [INDEXED, *("sliding_attention", INDEXED) * 2],
            "first_k_dense_replace": 1,
            "shared_experts_intermediate_size": 40,
            "n_group": 4,
            "topk_group": 2,
            "attention_bias": True,
            "head_dim": 16,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            **{f"swa_{name}": size for name, size in WINDOWED.items()},
        },
    ),
    "ernie4_5_moe": Case(
        "Ernie4_5_Moe",
        {
            "moe_num_experts": 8,
            "moe_k": 3,
            "moe_intermediate_size": 24,
            "num_hidden_layers": 3,
            "moe_num_shared_experts": 2,
            "tie_word_embeddings": False,
        },
    ),
    "exaone_moe": Case(
        "ExaoneMoe",
        {
            **EIGHT,
            "moe_intermediate_size": 24,
            "num_hidden_layers": 4,
            "num_shared_experts": 2,
            "n_group": 4,
            "topk_group": 2,
            "sliding_window": 5,
            "head_dim": 16,
        },
    ),
    "glm4_moe": Case(
        "Glm4Moe",
        {
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "num_hidden_layers": 3,
            "n_shared_experts": 2,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 1.5,
            "head_dim": 16,
            "use_qk_norm": True,
            "attention_bias": True,
        },
    ),
    "gpt_oss": Case("GptOss", {**EIGHT_LOCAL, "head_dim": 16, "sliding_window": 5, "swiglu_limit": 0.5}),
    "granitemoe": Case(
        "GraniteMoe", {**EIGHT_LOCAL, "attention_multiplier": 0.3, "residual_multiplier": 0.4, "logits_scaling": 0.5}
    ),
    "granitemoe_swa": Case(
        "GraniteMoeSWA",
        {
            **EIGHT_LOCAL,
            "num_hidden_layers": 3,
            "sliding_window": 5,
            "shared_intermediate_size": 40,
            "attention_multiplier": 0.3,
            "residual_multiplier": 0.4,
            "logits_scaling": 2.0,
            "layer_rope_theta": [100.0, 10_000.0, 0],
        },
    ),
    "hy_v3": Case(
        "HYV3",
        {**EIGHT, "head_dim": 16, "moe_intermediate_size": 24, "num_shared_experts": 2, "num_hidden_layers": 3},
    ),
    "hy_v4": Case(
        "HYV4",
        # As with GLM-5.
        {**LATENT, **INDEX, "index_n_heads": 16, "q_lora_rank": 16, "num_hidden_layers": 4, "swiglu_limit": 0.5}
        | {"hc_mult": 3, "hc_magnitude": 1.5, "hc_eps": 0.01, "attention_bias": True},
    ),
    "glm5_next": Case(
        "Glm5Next",
        # As with GLM-5.
        {**LATENT, **INDEX, "index_n_heads": 16, "q_lora_rank": 16, "qk_rope_head_dim": 0, "index_kpool": 3}
        | {
            "num_hidden_layers": 5,
            "layer_types": ["linear_attention", INDEXED, INDEXED, "linear_attention", INDEXED],
            "indexer_types": ["full", "full", "shared", "full", "full"],
            "mlp_layer_types": ["dense", *("sparse",) * 4],
            "linear_head_dim": 12,
            "linear_num_heads": 4,
            "swiglu_limit": 0.5,
            "hc_mult": 3,
            "hc_sinkhorn_iters": 4,
            "attention_bias": True,
            "pad_token_id": 0,
        },
    ),
    "granitemoe-shared": Case("GraniteMoeShared", {**EIGHT_LOCAL, "shared_intermediate_size": 40}),
    "lfm2_moe": Case(
        "Lfm2Moe",
        {
            **EIGHT,
            "moe_intermediate_size": 24,
            "num_hidden_layers": 4,
            "layer_types": ["conv", "full_attention", "conv", "conv"],
            "num_dense_layers": 1,
            "routed_scaling_factor": 1.5,
            "tie_word_embeddings": False,
        },
    ),
    "llama4": Case(
        "Llama4Text",
        {
            **EIGHT_LOCAL,
            "num_experts_per_tok": 2,
            "head_dim": 16,
            "num_hidden_layers": 4,
            "intermediate_size_mlp": 40,
            "interleave_moe_layer_step": 2,
            "attention_chunk_size": 8,
            "no_rope_layer_interval": 2,
            "floor_scale": 4,
            "attn_scale": 0.3,
            # As in Scout, whose ramp is a step.
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 100.0,
                "factor": 16.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 1.0,
                "original_max_position_embeddings": 16,
            },
        },
    ),
    "jetmoe": Case(
        "JetMoe",
        {
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "kv_channels": 16,
            "num_key_value_heads": 4,
            "rms_norm_eps": 1e-5,
        },
    ),
    "kolibri1": Case(
        "Kolibri1",
        {
            **EIGHT_LOCAL,
            "head_dim": 16,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 40,
            "norm_topk_prob": True,
            "num_hidden_layers": 3,
            "sliding_window": 5,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "laguna": Case(
        "Laguna",
        {
            **EIGHT,
            "head_dim": 16,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 40,
            "num_hidden_layers": 3,
            "num_attention_heads_per_layer": [8, 4, 8],
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "sliding_window": 5,
            "moe_routed_scaling_factor": 1.5,
            "moe_router_logit_softcapping": 0.5,
            "attention_bias": True,
        },
    ),
    "laguna-elements": Case(
        "Laguna",
        {**EIGHT, "head_dim": 16, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40}
        | {"gating": "per-element"},
    ),
    "longcat_flash": Case(
        "LongcatFlash",
        {
            **LATENT,
            "q_lora_rank": 16,
            "num_hidden_layers": 4,
            "n_routed_experts": 8,
            "zero_expert_num": 4,
            "moe_topk": 4,
            "expert_ffn_hidden_size": 24,
            "ffn_hidden_size": 96,
            "head_dim": 8,
            "routed_scaling_factor": 1.5,
            "attention_bias": True,
        },
    ),
    "hunyuan_moe": Case(
        "HunYuanMoEV1",
        {
            "head_dim": 16,
            "num_experts": 8,
            "moe_topk": 3,
            "rope_parameters": {"rope_type": "dynamic", "factor": 1.0, "alpha": 50.0, "rope_theta": 100.0},
        },
    ),
    "mellum": Case(
        "Mellum",
        {
            **EIGHT,
            "head_dim": 16,
            "moe_intermediate_size": 24,
            "num_hidden_layers": 3,
            "sliding_window": 5,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "mlp_layer_types": ["dense", "sparse", "sparse"],
            "rope_parameters": LOCAL_AND_GLOBAL,
        },
    ),
    "mimo_v2_flash": Case(
        "MiMoV2Flash",
        {
            "head_dim": 24,
            "v_head_dim": 16,
            "num_attention_heads": 8,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "n_group": 4,
            "topk_group": 2,
            "num_hidden_layers": 3,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
            "sliding_window": 5,
            "attention_bias": True,
        },
    ),
    "mistral4": Case(
        "Mistral4",
        {
            **LATENT,
            "q_lora_rank": None,
            "attention_bias": True,
            "first_k_dense_replace": 1,
            "n_group": 4,
            "topk_group": 2,
            "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3},
        },
    ),
    "mistral_large4": Case(
        "MistralLarge4",
        # As with GLM-5.
        {**LATENT, **INDEX, "index_n_heads": 16, "num_hidden_layers": 6, "attention_bias": True}
        | {
            "no_rope_layers": [1, 1, 0, 1, 1, 0],
            "first_k_dense_replace": 1,
            "indexer_types": ["full", "full", "full", "shared", "full", "shared"],
            "kv_source_layers": [0, 1, 2, 1, 4, 2],
            "final_logit_softcapping": 5.0,
            "n_group": 4,
            "topk_group": 2,
            "rope_parameters": {**YARN, "attention_factor": 1.0},
        },
    ),
    "minimax_m2": Case("MiniMaxM2", {**EIGHT_LOCAL, "head_dim": 16, "rotary_dim": 8}),
    "minimax_m3": Case(
        "MiniMaxM3VLText",
        {
            **EIGHT_LOCAL,
            "head_dim": 16,
            "num_hidden_layers": 3,
            "layer_types": ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"],
            "mlp_layer_types": ["dense", "sparse", "sparse"],
            "dense_intermediate_size": 40,
            "shared_intermediate_size": 24,
            "swiglu_limit": 0.5,
            "index_n_heads": 2,
            "index_head_dim": 12,
            "index_block_size": 4,
            "index_topk_blocks": 3,
            "partial_rotary_factor": 0.5,
        },
    ),
    "olmoe": Case("Olmoe", {**EIGHT, "norm_topk_prob": True}),
    "phimoe": Case("Phimoe", {"num_local_experts": 6, "router_jitter_noise": 0.1, "lm_head_bias": True}),
    "phimoe-long": Case(
        "Phimoe",
        {
            "num_local_experts": 4,
            "attention_bias": True,
            "rope_parameters": {
                **LONG,
                "short_factor": [1.0 + 0.2 * pair for pair in range(8)],
                "long_factor": [2.0 + 0.3 * pair for pair in range(8)],
                # Beyond it, transformers stays with the short factors, other than the model's authors and Phi-3.
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "solar_open": Case(
        "SolarOpen",
        {
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "head_dim": 16,
            "attention_bias": True,
        },
    ),
    "qwen2_moe": Case(
        "Qwen2Moe",
        {
            **EIGHT,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 40,
            "use_sliding_window": True,
            "sliding_window": 5,
            "max_window_layers": 1,
        },
    ),
    "mixtral": Case("Mixtral", {"num_local_experts": 6, "sliding_window": 5}),
    "qwen3_moe": Case("Qwen3Moe", {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24}),
    "qwen3_moe-sparse": Case(
        "Qwen3Moe",
        {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
            "num_hidden_layers": 4,
            "decoder_sparse_step": 2,
            "mlp_only_layers": [1],
            "attention_bias": True,
        },
    ),
}


def save_all_random(folder: Path, case: Case) -> torch.nn.Module:
    """The same as `save`, with random values for what it passes over or takes for a norm."""
    model = save(folder, case)
    with torch.no_grad():
        for name, tensor in [*model.named_buffers(), *model.named_parameters()]:
            if name.endswith(("correction_bias", "expert_bias", "Wqkv.weight")):
                tensor.copy_(torch.randn_like(tensor) * 0.15)
            elif name.endswith("tid2eid"):
                chosen = torch.rand(len(tensor), model.config.n_routed_experts).topk(tensor.shape[1]).indices
                tensor.copy_(chosen)
    model.save_pretrained(folder)
    if case.name in RELEASED:
        weights = folder / "model.safetensors"
        save_file({released(name, case.name): value for name, value in load_file(weights).items()}, weights)
    return model


RELEASED = {
    "HYV4": (
        ("model.hc_pre.hc_head.", "model.hc_head."),
        (".hc_pre.hc_attn_layer.", ".hc_attn_layer.hc_pre."),
        (".hc_pre.hc_mlp_layer.", ".hc_mlp_layer.hc_pre."),
        (".mlp.linear_gate.", ".mlp.gate_proj."),
        (".shared_experts.linear_gate.", ".shared_experts.gate_proj."),
    )
}
"""Parts of names that transformers reads from released checkpoints, and writes otherwise."""


def released(name: str, family: str) -> str:
    """The name of a tensor in released checkpoints, from the one that transformers writes."""
    for written, read in RELEASED[family]:
        name = name.replace(written, read)
    return name


class ArcticLayer(MixtralDecoderLayer):
    """The authors' own code, which is not in transformers, made of Mixtral's parts."""

    def __init__(self, config: Any, layer: int) -> None:
        super().__init__(config, layer)
        size = config.hidden_size
        self.residual_layernorm = MixtralRMSNorm(size, eps=config.rms_norm_eps)
        self.dense = torch.nn.ModuleDict({name: torch.nn.Linear(size, size, bias=False) for name in ("w1", "w2", "w3")})
        self.activation = ACT2FN[config.hidden_act]

    def forward(self, hidden_states: torch.Tensor, **options: Any) -> torch.Tensor:
        attended, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **options)
        behind = hidden_states + attended
        normed, mlp = self.residual_layernorm(behind), self.dense
        dense = mlp["w2"](self.activation(mlp["w1"](normed)) * mlp["w3"](normed))
        return behind + dense + self.mlp(self.post_attention_layernorm(hidden_states))


ARCTIC = {"arctic": Case("Mixtral", {"num_local_experts": 6})}


def save_arctic(folder: Path, case: Case) -> torch.nn.Module:
    """A random Arctic in `folder`, from options of Mixtral."""
    model = save(folder, case)
    config = model.config
    model.model.layers = torch.nn.ModuleList([ArcticLayer(config, layer) for layer in range(config.num_hidden_layers)])
    randomise(model.eval())
    model.save_pretrained(folder)
    weights, path = folder / "model.safetensors", folder / "config.json"
    save_file({name.replace(".dense.", ".residual_mlp."): value for name, value in load_file(weights).items()}, weights)
    own = {"architectures": ["ArcticForCausalLM"], "moe_layer_frequency": 1, "parallel_attn_mlp_res": True}
    path.write_text(json.dumps({**json.loads(path.read_text()), **own, "moe_token_dropout": True}))
    return model


REFERENCES = {"ArcticForCausalLM": "Mixtral"}
"""Families that are compared with what is made of another's parts."""


@in_stacks(ARCTIC)
def test_arctic(tmp_path: Path, name: str, stack: Stack) -> None:
    check(tmp_path, save_arctic(tmp_path, ARCTIC[name]), stack)


@in_stacks(CASES)
def test_logits(tmp_path: Path, name: str, stack: Stack) -> None:
    check(tmp_path, save_all_random(tmp_path, CASES[name]), stack)
