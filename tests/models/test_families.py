"""Every family of decoders gives transformers' logits: prompts in chunks in the scan, whole in the (slow) loop."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file

from jaxllm.models.causal_lm import load_model
from jaxllm.models.checkpoint.checkpoint import Checkpoint
from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.errors import ModelError
from jaxllm.models.families import registry
from jaxllm.models.options import ForwardOptions
from tests.models.paged import compiled_step, run
from tests.models.stacks import in_stacks
from tests.models.test_parity import CHUNKS, LENGTHS, ONE_GO, SMALL, TOKENS, expected_logits
from tests.thinned import thinned

Stack = Literal["loop", "scan"]


@dataclass(frozen=True)
class Case:
    """A small random model: the name of transformers' configuration, without `Config`, and its options.

    `rescaled` multiplies random weights, of models whose logits would all be about the same.
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    rescaled: float = 1.0


LATENT = {
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 20,
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
}
SLIDING, FULL = "sliding_attention", "full_attention"
LOCAL_AND_GLOBAL = {
    SLIDING: {"rope_type": "default", "rope_theta": 100.0},
    FULL: {"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0},
}
LONG = {"rope_type": "longrope", "short_factor": [1.0, 1.5, 2.0], "long_factor": [2.0, 3.0, 5.0], "rope_theta": 100.0}

MULTIPLIERS = {
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.3,
    "residual_multiplier": 0.4,
    "logits_scaling": 2.0,
}

CASES = {
    "apertus": Case("Apertus", {"attention_bias": True}),
    "apertus1p5": Case("Apertus1p5Text", {"attention_bias": True, "output_vocab_size": 90}),
    "arcee": Case("Arcee"),
    "bitnet": Case("BitNet", {"attention_bias": True}),
    "cohere": Case("Cohere", {"logit_scale": 0.7}),
    "cohere-norms": Case("Cohere", {"logit_scale": 0.7, "use_qk_norm": True}),
    "cohere2": Case("Cohere2", {"logit_scale": 0.7, "sliding_window": 5, "num_hidden_layers": 4}),
    "cohere_compass": Case(
        "CohereCompassText",
        {
            "logit_scale": 0.7,
            "num_hidden_layers": 3,
            "sliding_window": 5,
            "layer_types": [SLIDING, FULL, SLIDING],
            "rope_parameters": {SLIDING: {"rope_type": "default", "rope_theta": 100.0}, FULL: None},
        },
    ),
    "cwm": Case(
        "Cwm", {"bos_token_id": 1, "head_dim": 16, "sliding_window": 5, "num_hidden_layers": 5, "mlp_bias": True}
    ),
    "diffllama": Case("DiffLlama", {"num_attention_heads": 8, "num_key_value_heads": 4, "num_hidden_layers": 3}),
    "emu3": Case("Emu3Text", {"pad_token_id": 0, "bos_token_id": 1}),
    "ernie4_5": Case("Ernie4_5", {"use_bias": True, "head_dim": 16}),
    "exaone4": Case("Exaone4", {"sliding_window": 5, "num_hidden_layers": 4}),
    "exaone4-full": Case("Exaone4", {"sliding_window": None, "layer_types": [FULL, FULL]}),
    "gemma": Case("Gemma", {"head_dim": 16}),
    "gemma2": Case("Gemma2", {"head_dim": 16, "sliding_window": 5, "query_pre_attn_scalar": 20}),
    "gemma3": Case(
        "Gemma3Text",
        {
            "head_dim": 16,
            "sliding_window": 5,
            "num_hidden_layers": 3,
            "layer_types": [SLIDING, SLIDING, FULL],
            "rope_parameters": LOCAL_AND_GLOBAL,
        },
    ),
    "glm": Case("Glm", {"head_dim": 16}),
    "glm4": Case("Glm4", {"head_dim": 16}),
    "granite": Case(
        "Granite",
        MULTIPLIERS,
    ),
    "granite_swa": Case(
        "GraniteSWA",
        {
            **MULTIPLIERS,
            "sliding_window": 5,
            "num_hidden_layers": 3,
            "tie_word_embeddings": False,
            "layer_rope_theta": [100.0, 10_000.0, 0],
        },
    ),
    "helium": Case("Helium", {"head_dim": 16}),
    "hunyuan": Case(
        "HunYuanDenseV1",
        {
            "head_dim": 16,
            "rope_parameters": {"rope_type": "dynamic", "factor": 1.0, "alpha": 50.0, "rope_theta": 100.0},
        },
    ),
    "lfm2": Case(
        "Lfm2",
        {
            "layer_types": ["conv", "conv", FULL, "conv"],
            "num_hidden_layers": 4,
            "block_multiple_of": 16,
            "tie_word_embeddings": False,
        },
    ),
    "lfm2-wide": Case(
        "Lfm2",
        {
            "layer_types": [FULL, "conv"],
            "conv_bias": True,
            "conv_L_cache": 4,
            "block_auto_adjust_ff_dim": False,
            "tie_word_embeddings": False,
        },
    ),
    "minicpm3": Case(
        "MiniCPM3",
        {
            "num_key_value_heads": 4,
            "q_lora_rank": 16,
            "kv_lora_rank": 24,
            "qk_nope_head_dim": 12,
            "qk_rope_head_dim": 8,
            "v_head_dim": 20,
            "dim_model_base": 32,
            "tie_word_embeddings": True,
        },
    ),
    "hyperclovax": Case("HyperCLOVAX", MULTIPLIERS),
    "jais2": Case("Jais2", {"head_dim": 16}),
    "ministral": Case(
        "Ministral",
        {"sliding_window": 5, "head_dim": 16, "layer_types": [SLIDING, FULL]},
    ),
    "ministral3": Case(
        "Ministral3",
        {
            "head_dim": 16,
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 8,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.3,
                "rope_theta": 1000.0,
            },
        },
    ),
    "nemotron": Case("Nemotron", {"attention_bias": True, "mlp_bias": True}),
    "olmo": Case("Olmo", {"clip_qkv": 0.5}),
    "olmo2": Case("Olmo2"),
    "olmo3": Case(
        "Olmo3",
        {
            "sliding_window": 5,
            "num_hidden_layers": 4,
            "rope_parameters": LOCAL_AND_GLOBAL,
        },
    ),
    "phi3": Case("Phi3", {"sliding_window": 7}),
    "phi4_multimodal": Case(
        "Phi4Multimodal",
        {
            "pad_token_id": 0,
            "eos_token_id": 2,
            "vision_config": {
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "image_size": 28,
                "crop_size": 28,
            },
            "audio_config": {
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_blocks": 1,
                "num_attention_heads": 2,
                "ext_pw_out_channel": 16,
                "depthwise_separable_out_channel": 16,
                "nemo_conv_channels": 16,
            },
        },
    ),
    "phi3-short": Case(
        "Phi3", {"rope_parameters": {**LONG, "partial_rotary_factor": 0.375, "original_max_position_embeddings": 64}}
    ),
    "phi3-long": Case(
        "Phi3", {"rope_parameters": {**LONG, "partial_rotary_factor": 0.375, "original_max_position_embeddings": 16}}
    ),
    "seed_oss": Case("SeedOss", {"head_dim": 16, "attention_out_bias": True}),
    "smollm3": Case("SmolLM3", {"num_hidden_layers": 4}),
    "smollm3-windows": Case("SmolLM3", {"use_sliding_window": True, "sliding_window": 5, "no_rope_layers": [1, 0]}),
    "stablelm": Case("StableLm", {"use_qkv_bias": True}),
    "stablelm-norms": Case("StableLm", {"qk_layernorm": True}),
    "stablelm-parallel": Case("StableLm", {"use_parallel_residual": True}),
    "vaultgemma": Case("VaultGemma", {"head_dim": 16, "sliding_window": 5, "query_pre_attn_scalar": 20}),
    "starcoder2": Case("Starcoder2", {"sliding_window": 5}),
    "youtu": Case(
        "Youtu",
        {
            "num_key_value_heads": 4,
            "q_lora_rank": 16,
            "kv_lora_rank": 24,
            "qk_nope_head_dim": 12,
            "qk_rope_head_dim": 8,
            "v_head_dim": 20,
        },
    ),
}


def randomise(model: torch.nn.Module, rescaled: float = 1.0) -> None:
    """Give all parameters values that are large enough for every option to change the logits."""
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            around = 1.0 if "norm" in name and parameter.ndim < 3 and "bias" not in name else 0.0
            spread = (0.3 if around else 0.15) * rescaled
            parameter.copy_(torch.randn_like(parameter) * spread + around)


UNLISTED: dict[type[transformers.PreTrainedConfig], type[transformers.PreTrainedModel]] = {
    transformers.Emu3TextConfig: transformers.Emu3ForCausalLM,
    transformers.Glm5NextConfig: transformers.Glm5NextForConditionalGeneration,
    transformers.Mistral4Config: transformers.Mistral4ForCausalLM,
    transformers.MistralLarge4Config: transformers.MistralLarge4ForConditionalGeneration,
}

NESTED: dict[str, dict[str, Any]] = {
    "Glm5Next": {"depth": 1, "num_heads": 2, "hidden_size": 16, "intermediate_size": 16, "out_hidden_size": 64},
    "MistralLarge4": {
        "model_type": "pixtral",
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    },
}
"""Configurations whose language model has a section, and is not there without a tower; and the tower's options."""


def class_of(config: type[transformers.PreTrainedConfig]) -> type[transformers.PreTrainedModel]:
    """The class of decoders with a configuration. transformers 5.24 does not list those of some."""
    if config in UNLISTED:
        return UNLISTED[config]
    found: type[transformers.PreTrainedModel] = transformers.AutoModelForCausalLM._model_mapping[config]
    return found


def save(folder: Path, case: Case) -> torch.nn.Module:
    """A random model in `folder`."""
    options = {**SMALL, **case.options}
    if case.name in NESTED:
        vision, text = options.pop("vision_config", NESTED[case.name]), options.pop("text_config", {})
        options = {"text_config": {**options, **text}, "vision_config": vision}
    config = getattr(transformers, f"{case.name}Config")(**options, attn_implementation="eager")
    model = class_of(type(config))._from_config(config).eval()
    randomise(model, case.rescaled)
    model.save_pretrained(folder)
    return model


def check(folder: Path, model: torch.nn.Module, stack: Stack = "scan", rtol: float = 0.0) -> None:
    """Compare what is in `folder` with the model: whole prompts of a loop, chunks of a scan."""
    random = np.random.default_rng(1)
    prompts = [random.integers(0, SMALL["vocab_size"], length).tolist() for length in LENGTHS]
    expected = expected_logits(model, prompts)
    assert min(wanted.std() for wanted in expected) > 0.3, "logits too close to each other to mean anything"
    config = read_config(folder)
    loaded = load_model(Checkpoint(folder), config, ForwardOptions(stack=stack, max_model_len=64), "float32")
    found = run(loaded, prompts, CHUNKS if stack == "scan" else ONE_GO, TOKENS, compiled_step(loaded))
    for logits, wanted in zip(found, expected, strict=True):
        scored, rest = np.split(logits, [wanted.shape[1]], axis=1)
        np.testing.assert_allclose(scored, wanted, atol=1e-4, rtol=rtol)
        assert np.isneginf(rest).all()


@in_stacks(CASES)
def test_logits(tmp_path: Path, name: str, stack: Stack) -> None:
    check(tmp_path, save(tmp_path, CASES[name]), stack)


Tensors = dict[str, np.ndarray]


def internlm2(values: Tensors) -> Tensors:
    """Llama's tensors as InternLM 2 has them, for 2 KV heads of 16 with 2 query heads each."""
    names = {
        "embed_tokens": "tok_embeddings",
        "lm_head": "output",
        "self_attn.o_proj": "attention.wo",
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "feed_forward.w1",
        "mlp.up_proj": "feed_forward.w3",
        "mlp.down_proj": "feed_forward.w2",
    }
    made: Tensors = {}
    for name, value in values.items():
        before, _, projection = name.partition("self_attn.")
        if projection in ("q_proj.weight", "k_proj.weight", "v_proj.weight"):
            parts = [values[f"{before}self_attn.{part}_proj.weight"].reshape(2, -1, 64) for part in "qkv"]
            made[f"{before}attention.wqkv.weight"] = np.concatenate(parts, axis=1).reshape(-1, 64)
        else:
            renamed = next((name.replace(old, new) for old, new in names.items() if old in name), name)
            made[renamed] = value
    return made


@dataclass(frozen=True)
class Twin:
    """A family that transformers does not have, and one it has that computes the same.

    `options` are of the configuration, `absent` what it does not say, and `rename` makes its tensors.
    """

    case: Case
    options: dict[str, Any] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    rename: Callable[[Tensors], Tensors] = lambda values: values


def with_a_further_layer(values: Tensors) -> Tensors:
    """A layer after the last, which predicts further tokens."""
    return {
        **values,
        "model.layers.2.enorm.weight": np.ones(64, np.float32),
        "model.layers.2.eh_proj.weight": np.eye(64),
    }


LLAMA = Case("Llama")
TWINS = {
    "AquilaForCausalLM": Twin(LLAMA),
    "DeciLMForCausalLM": Twin(LLAMA, {"num_key_value_heads_per_layer": [2, 2]}, ("num_key_value_heads",)),
    "InternLM2ForCausalLM": Twin(LLAMA, {"bias": False}, rename=internlm2),
    "InternLM3ForCausalLM": Twin(
        Case("Llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 16}),
        {"qkv_bias": True, "bias": True},
        ("attention_bias", "mlp_bias"),
    ),
    "InternLMForCausalLM": Twin(
        Case("Llama", {"attention_bias": True, "num_key_value_heads": 4}),
        {"bias": True},
        ("attention_bias", "num_key_value_heads"),
    ),
    "KimiK2ForCausalLM": Twin(
        Case("DeepseekV3", {**LATENT, "q_lora_rank": 16, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}),
        {"model_type": "kimi_k2", "topk_method": "noaux_tc", "num_nextn_predict_layers": 1},
        rename=with_a_further_layer,
    ),
    "MiniCPMForCausalLM": Twin(
        Case(
            "Granite",
            {
                "embedding_multiplier": 12.0,
                "attention_multiplier": 0.25,
                "residual_multiplier": 1.4 / 2**0.5,
                "logits_scaling": 64 / 32,
                "tie_word_embeddings": True,
            },
        ),
        {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 32},
        ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling"),
    ),
    "OrionForCausalLM": Twin(
        Case(
            "StableLm", {"rope_parameters": {"rope_theta": 100.0, "rope_type": "default", "partial_rotary_factor": 1.0}}
        ),
        {"rms_norm_eps": 1e-5},
        ("layer_norm_eps",),
    ),
    "XverseForCausalLM": Twin(LLAMA),
    "YiForCausalLM": Twin(LLAMA),
}


@pytest.mark.parametrize("architecture", TWINS)
def test_twins(tmp_path: Path, architecture: str) -> None:
    twin = TWINS[architecture]
    model = save(tmp_path, twin.case)
    path = tmp_path / "config.json"
    values = {key: value for key, value in json.loads(path.read_text()).items() if key not in twin.absent}
    path.write_text(json.dumps({**values, "architectures": [architecture], **twin.options}))
    weights = tmp_path / "model.safetensors"
    save_file(twin.rename(load_file(weights)), weights)
    check(tmp_path, model)


GRID = {"rope_type": "default", "rope_theta": 100.0, "mrope_section": [2, 3, 3]}
HALF_GRID = {**GRID, "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5}
SEEING = {
    "apertus1p5": (
        transformers.Apertus1p5Config,
        transformers.Apertus1p5ForConditionalGeneration,
        {**SMALL, "output_vocab_size": 90},
    ),
    "dots3_note": (
        transformers.Dots3NoteConfig,
        transformers.Dots3NoteForConditionalGeneration,
        {
            **SMALL,
            **LATENT,
            "q_lora_rank": 16,
            "index_head_dim": 12,
            "pad_token_id": 0,
            "shared_experts_intermediate_size": 24,
            "layer_types": ["indexed_attention", "full_attention"],
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    "gemma3": (
        transformers.Gemma3Config,
        transformers.Gemma3ForConditionalGeneration,
        {**SMALL, **CASES["gemma3"].options},
    ),
    "paligemma": (
        transformers.PaliGemmaConfig,
        transformers.PaliGemmaForConditionalGeneration,
        {**SMALL, "model_type": "gemma", "head_dim": 16},
    ),
    "gemma4": (
        transformers.Gemma4Config,
        transformers.Gemma4ForConditionalGeneration,
        {
            **SMALL,
            "pad_token_id": 0,
            "head_dim": 16,
            "global_head_dim": 32,
            "layer_types": [SLIDING, FULL],
            "sliding_window": 5,
            "hidden_size_per_layer_input": 8,
        },
    ),
    "gemma4_unified": (
        transformers.Gemma4UnifiedConfig,
        transformers.Gemma4UnifiedForConditionalGeneration,
        {**SMALL, "pad_token_id": 0, "head_dim": 16, "global_head_dim": 32, "layer_types": [SLIDING, FULL]},
    ),
    "idefics2": (
        transformers.Idefics2Config,
        transformers.Idefics2ForConditionalGeneration,
        {**SMALL, "model_type": "mistral", "sliding_window": 5},
    ),
    "idefics3": (
        transformers.Idefics3Config,
        transformers.Idefics3ForConditionalGeneration,
        {**SMALL, "model_type": "llama"},
    ),
    "smolvlm": (
        transformers.SmolVLMConfig,
        transformers.SmolVLMForConditionalGeneration,
        {**SMALL, "model_type": "llama"},
    ),
    "aya_vision": (
        transformers.AyaVisionConfig,
        transformers.AyaVisionForConditionalGeneration,
        # transformers 5.24 leaves out the logits' scale of Cohere 2 here.
        {**SMALL, "model_type": "cohere2", "sliding_window": 5, "num_hidden_layers": 4, "logit_scale": 1.0},
    ),
    "got_ocr2": (
        transformers.GotOcr2Config,
        transformers.GotOcr2ForConditionalGeneration,
        {**SMALL, "model_type": "qwen2"},
    ),
    "deepseek_ocr2": (
        transformers.DeepseekOcr2Config,
        transformers.DeepseekOcr2ForConditionalGeneration,
        {
            **SMALL,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "mlp_layer_types": ["dense", "sparse"],
        },
    ),
    "internvl": (
        transformers.InternVLConfig,
        transformers.InternVLForConditionalGeneration,
        {**SMALL, "model_type": "qwen3", "head_dim": 16},
    ),
    "internvl-experts": (
        transformers.InternVLConfig,
        transformers.InternVLForConditionalGeneration,
        {
            **SMALL,
            "model_type": "qwen3_moe",
            "head_dim": 16,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
        },
    ),
    "qianfan_ocr": (
        transformers.QianfanOCRConfig,
        transformers.QianfanOCRForConditionalGeneration,
        {**SMALL, "model_type": "qwen3", "head_dim": 16},
    ),
    "vipllava": (
        transformers.VipLlavaConfig,
        transformers.VipLlavaForConditionalGeneration,
        {**SMALL, "model_type": "llama"},
    ),
    "lighton_ocr": (
        transformers.LightOnOcrConfig,
        transformers.LightOnOcrForConditionalGeneration,
        {**SMALL, "model_type": "qwen3", "head_dim": 16},
    ),
    "llava": (
        transformers.LlavaConfig,
        transformers.LlavaForConditionalGeneration,
        {**SMALL, "model_type": "llama"},
    ),
    "cohere2_vision": (
        transformers.Cohere2VisionConfig,
        transformers.Cohere2VisionForConditionalGeneration,
        # As with Aya Vision.
        {**SMALL, "model_type": "cohere2", "logit_scale": 1.0},
    ),
    "deepseek_vl": (
        transformers.DeepseekVLConfig,
        transformers.DeepseekVLForConditionalGeneration,
        {**SMALL, "model_type": "llama"},
    ),
    "janus": (
        transformers.JanusConfig,
        transformers.JanusForConditionalGeneration,
        {**SMALL, "model_type": "llama"},
    ),
    "kimi_k25": (
        transformers.Kimi_K25Config,
        transformers.Kimi_K25ForConditionalGeneration,
        {
            **SMALL,
            **LATENT,
            "model_type": "deepseek_v3",
            "q_lora_rank": 16,
            "first_k_dense_replace": 1,
            "n_group": 1,
            "topk_group": 1,
        },
    ),
    "lfm2_vl": (
        transformers.Lfm2VlConfig,
        transformers.Lfm2VlForConditionalGeneration,
        {**SMALL, "model_type": "lfm2", "layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False},
    ),
    "llava_next": (
        transformers.LlavaNextConfig,
        transformers.LlavaNextForConditionalGeneration,
        {**SMALL, "model_type": "mistral", "head_dim": 16, "sliding_window": None},
    ),
    "llava_next_video": (
        transformers.LlavaNextVideoConfig,
        transformers.LlavaNextVideoForConditionalGeneration,
        {**SMALL, "model_type": "llama"},
    ),
    "llava_onevision": (
        transformers.LlavaOnevisionConfig,
        transformers.LlavaOnevisionForConditionalGeneration,
        {**SMALL, "model_type": "qwen2"},
    ),
    "llama4": (
        transformers.Llama4Config,
        transformers.Llama4ForConditionalGeneration,
        {
            **SMALL,
            "head_dim": 16,
            "attention_chunk_size": 12,
            "num_local_experts": 4,
            "intermediate_size_mlp": 40,
            "moe_layers": [1],
            "no_rope_layers": [1, 0],
            "use_qk_norm": False,
        },
    ),
    "minimax_m3": (
        transformers.MiniMaxM3VLConfig,
        transformers.MiniMaxM3SparseForConditionalGeneration,
        {
            **SMALL,
            "head_dim": 16,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "dense_intermediate_size": 40,
            "moe_layer_freq": [0, 1],
            "sparse_attention_config": {
                "use_sparse_attention": True,
                "sparse_attention_freq": [0, 1],
                "sparse_num_index_heads": 2,
                "sparse_index_dim": 16,
                "sparse_block_size": 4,
                "sparse_topk_blocks": 3,
            },
        },
    ),
    "mistral3": (
        transformers.Mistral3Config,
        transformers.Mistral3ForConditionalGeneration,
        {**SMALL, "model_type": "mistral", "head_dim": 16, "sliding_window": None},
    ),
    "mistral4": (
        transformers.Mistral3Config,
        transformers.Mistral3ForConditionalGeneration,
        {**SMALL, **LATENT, "model_type": "mistral4", "q_lora_rank": 16, "n_group": 1, "topk_group": 1},
    ),
    "qwen2_vl": (
        transformers.Qwen2VLConfig,
        transformers.Qwen2VLForConditionalGeneration,
        {**SMALL, "rope_parameters": GRID},
    ),
    "qwen2_5_vl": (
        transformers.Qwen2_5_VLConfig,
        transformers.Qwen2_5_VLForConditionalGeneration,
        {**SMALL, "rope_parameters": GRID},
    ),
    "glm46v": (
        transformers.Glm46VConfig,
        transformers.Glm46VForConditionalGeneration,
        {**SMALL, "rope_parameters": HALF_GRID, "model_type": "glm4v_text"},
    ),
    "glm4v": (
        transformers.Glm4vConfig,
        transformers.Glm4vForConditionalGeneration,
        {**SMALL, "rope_parameters": HALF_GRID},
    ),
    "glm_ocr": (
        transformers.GlmOcrConfig,
        transformers.GlmOcrForConditionalGeneration,
        {**SMALL, "rope_parameters": GRID, "head_dim": 16},
    ),
    "glm4v_moe": (
        transformers.Glm4vMoeConfig,
        transformers.Glm4vMoeForConditionalGeneration,
        {
            **SMALL,
            "rope_parameters": HALF_GRID,
            "head_dim": 16,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
        },
    ),
    "paddleocr_vl": (
        transformers.PaddleOCRVLConfig,
        transformers.PaddleOCRVLForConditionalGeneration,
        {**SMALL, "rope_parameters": GRID, "head_dim": 16, "use_bias": True},
    ),
    "qwen3_vl": (transformers.Qwen3VLConfig, transformers.Qwen3VLForConditionalGeneration, {**SMALL, "head_dim": 16}),
    "qwen3_vl_moe": (
        transformers.Qwen3VLMoeConfig,
        transformers.Qwen3VLMoeForConditionalGeneration,
        {**SMALL, "head_dim": 16, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24},
    ),
}
VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
SIZES = {"image_size": 28, "patch_size": 14}
QWEN_VISION = {"depth": 1, "num_heads": 2, "out_hidden_size": 64}
GLM_VISION = {**QWEN_VISION, "hidden_size": 16, "intermediate_size": 16, "image_size": 28}
OTHER_VISION: dict[str, dict[str, Any]] = {
    "apertus1p5": {
        "codebook_size": 8,
        "embed_dim": 8,
        "latent_channels": 8,
        "base_channels": 32,
        "num_res_blocks": 1,
        "channel_multiplier": [1, 1],
        "attn_resolutions": [],
    },
    "janus": {**VISION, **SIZES, "projection_dim": SMALL["hidden_size"]},
    "dots3_note": {**VISION, "mlp_layer_types": ["dense"], "adapter_in_dim": 16, "adapter_out_dim": 64},
    # They take the states before the last layer.
    "llava": {**VISION, **SIZES, "num_hidden_layers": 2},
    "llava_next": {**VISION, **SIZES, "num_hidden_layers": 2},
    "llava_next_video": {**VISION, **SIZES, "num_hidden_layers": 2},
    "gemma4": {**VISION, "num_key_value_heads": 2, "head_dim": 8, "patch_size": 14},
    "glm46v": {**GLM_VISION, "model_type": "glm4v_vision"},
    "glm4v": GLM_VISION,
    "glm_ocr": GLM_VISION,
    "glm4v_moe": GLM_VISION,
    "qwen2_vl": {"depth": 1, "num_heads": 2, "embed_dim": 16, "hidden_size": 64},
    "qwen2_5_vl": {**QWEN_VISION, "hidden_size": 16, "intermediate_size": 16},
    "qwen3_vl": {**QWEN_VISION, "hidden_size": 16, "intermediate_size": 16, "deepstack_visual_indexes": [0]},
    "qwen3_vl_moe": {**QWEN_VISION, "hidden_size": 16, "intermediate_size": 16, "deepstack_visual_indexes": [0]},
    "kimi_k25": {**VISION, "patch_size": 14, "pos_emb_height": 4, "pos_emb_width": 4},
    "lfm2_vl": {**VISION, "patch_size": 14, "num_patches": 4, "vision_use_head": False},
    "deepseek_ocr2": {
        "sam_config": {**VISION, "downsample_channels": [8, 16], "global_attn_indexes": [0], "intermediate_size": 0},
        "encoder_config": {**VISION, "num_key_value_heads": 2},
    },
    # Convolutions leave every fourth patch, and its option for the MLP has another name.
    "got_ocr2": {**VISION, **SIZES, "image_size": 56, "intermediate_size": 0},
}
"""Of those that have other options than most."""
OTHER_OPTIONS: dict[str, dict[str, Any]] = {
    "janus": {"vq_config": {"base_channels": 32, "channel_multiplier": [1, 1], "latent_channels": 32}},
    "vipllava": {"vision_feature_layer": [-1]},
    "apertus1p5": {
        "image_token_id": 1,
        "audio_token_id": 2,
        "image_token_offset": 96,
        "audio_token_offset": 104,
        "audio_config": {"model_type": "wavtokenizer_encoder", "codebook_size": 8},
    },
    "dots3_note": {
        "audio_config": {
            **VISION,
            "feature_size": 8,
            "downsample_hidden_size": 4,
            "adapter_input_size": 16,
            "adapter_out_dim": 64,
        },
    },
    "gemma3": {"mm_tokens_per_image": 4},
    "kimi_k25": {"projection_hidden_size": 16},
    "paligemma": {"projection_dim": SMALL["hidden_size"]},
}
"""Of the whole, where that has some."""


# One of each kind of layers and names. The answers of the others about images are compared in tests/e2e/images.
FEW_SEEING = (
    "cohere2_vision", "gemma3", "gemma4", "glm4v_moe", "got_ocr2", "idefics3", "internvl-experts", "kimi_k25",
    "lfm2_vl", "llama4", "llava", "paligemma", "qwen2_vl", "qwen3_vl_moe",
)  # fmt: skip
SLOW = ("gemma4", "kimi_k25", "llama4", "qwen2_vl")
"""Their layers are compared in the fast part as those of models that do not see."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW or name not in FEW_SEEING))
        for name in thinned(FEW_SEEING, (name for name in SEEING if name not in FEW_SEEING))
    ],
)
def test_the_language_model_of_one_that_sees(tmp_path: Path, name: str) -> None:
    config_class, model_class, text = SEEING[name]
    config = config_class(
        text_config={**text, "tie_word_embeddings": False},
        vision_config=OTHER_VISION.get(name, {**VISION, **SIZES}),
        tie_word_embeddings=False,
        attn_implementation="eager",
        **OTHER_OPTIONS.get(name, {}),
    )
    model = model_class(config).eval()
    randomise(model)
    model.save_pretrained(tmp_path)
    if name == "qwen3_vl_moe":
        weights = tmp_path / "model.safetensors"
        save_file(with_rows_of_experts_as_columns(load_file(weights)), weights)
    # The whole Llama 4 cannot be asked: in transformers 5.24 it reads `image_outputs` of its language model, which
    # has none. Of text alone the language model says the same.
    check(tmp_path, model.language_model if name == "llama4" else model)


def with_rows_of_experts_as_columns(values: Tensors) -> Tensors:
    """The same as published checkpoints have it; transformers reads that, and writes the other."""
    return {
        name: np.ascontiguousarray(value.swapaxes(1, 2)) if ".experts." in name else value
        for name, value in values.items()
    }


def test_an_unknown_option_is_an_error(tmp_path: Path) -> None:
    save(tmp_path, LLAMA)
    path = tmp_path / "config.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps({**values, "use_differential_attention": True}))
    with pytest.raises(ModelError, match=r"option 'use_differential_attention' = true is unknown for this"):
        read_config(tmp_path)
    path.write_text(json.dumps({**values, "use_differential_attention": False, "unsloth_version": "1"}))
    assert read_config(tmp_path).num_layers == 2


OTHER_NAMES = {
    "JetMoEForCausalLM": "JetMoeForCausalLM",
    "KimiK25ForConditionalGeneration": "Kimi_K25ForConditionalGeneration",
    "MPTForCausalLM": "MptForCausalLM",
    "PhiMoEForCausalLM": "PhimoeForCausalLM",
    "RWForCausalLM": "FalconForCausalLM",
}
"""Architectures that checkpoints have under another name than transformers, with the same family."""


SEEING_LIKE = {
    "DeepseekOCR2ForCausalLM": "DeepseekOcr2",
    "DeepseekOCRForCausalLM": "UnlimitedOcr",
    "InternVLChatModel": "InternVL",
    "KimiVLForConditionalGeneration": "Kimi_K25",
    "Phi3VForCausalLM": "Phi3",
    "Phi4MMForCausalLM": "Phi4Multimodal",
}
"""Models that see, which transformers lacks, and what each is compared with in tests/e2e/images."""


def test_other_names() -> None:
    for old, new in OTHER_NAMES.items():
        assert registry.lookup(old) is registry.lookup(new)


def test_every_decoder_is_compared() -> None:
    from tests.models.families.test_decoders import CASES as GPT_LIKE
    from tests.models.families.test_remote_code import LIKE
    from tests.models.test_expert_families import CASES as EXPERTS
    from tests.models.test_expert_families import REFERENCES
    from tests.models.test_gemma_families import CASES as GEMMA
    from tests.models.test_gemma_families import NESTED
    from tests.models.test_parity import FAMILIES
    from tests.models.test_recurrent_families import CASES as RECURRENT
    from tests.models.test_recurrent_families import SEEING as RECURRENT_SEEING

    names = {case.name for cases in (CASES, GPT_LIKE, EXPERTS, GEMMA, RECURRENT) for case in cases.values()}
    configs = [getattr(transformers, f"{name}Config") for name in names] + [config for config, _ in FAMILIES.values()]
    compared = {class_of(config).__name__ for config in configs}
    compared |= {NESTED, *(model.__name__ for _, model, _ in SEEING.values())}
    compared |= {model.__name__ for _, model in RECURRENT_SEEING.values()}
    hearing = ("AudioFlamingo3", "GlmAsr", "Qwen2Audio", "Voxtral", "Whisper")
    compared |= {f"{name}ForConditionalGeneration" for name in hearing}  # in tests/e2e/sound
    compared |= {"MiniCPMV4_6ForConditionalGeneration"}  # in tests/e2e/images
    alike = LIKE | REFERENCES | {architecture: twin.case.name for architecture, twin in TWINS.items()}
    alike |= SEEING_LIKE | {"UltravoxModel": "Whisper"}  # in tests/e2e/sound
    for architecture, family in registry.families().items():
        if family.use != "generate":
            continue
        if family.like is not None:
            assert alike.get(architecture) == family.like, f"{architecture} is said to be like {family.like}"
            continue
        assert OTHER_NAMES.get(architecture, architecture) in compared
