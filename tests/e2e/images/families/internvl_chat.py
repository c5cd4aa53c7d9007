"""InternVL as its authors publish it: the model of transformers under other names, with InternLM 2 for Llama."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load, save_file
from transformers import InternVLForConditionalGeneration

from tests.e2e.images.families.case import PartsProcessor, SeeingCase
from tests.e2e.images.families.internvl import TOKENS, config, inputs
from tests.e2e.images.families.internvl import processor as newer_processor

Tensors = dict[str, np.ndarray]

NAMES = {
    "embeddings.cls_token": "embeddings.class_embedding",
    "embeddings.patch_embeddings.projection.": "embeddings.patch_embedding.",
    "embeddings.position_embeddings": "embeddings.position_embedding",
    "encoder.layer.": "encoder.layers.",
    "attention.projection_layer.": "attn.proj.",
    "attention.q_norm.": "attn.q_norm.",
    "attention.k_norm.": "attn.k_norm.",
    "layernorm_before.": "norm1.",
    "layernorm_after.": "norm2.",
    "lambda_1": "ls1",
    "lambda_2": "ls2",
    "vision_tower.": "vision_model.",
    "multi_modal_projector.layer_norm.": "mlp1.0.",
    "multi_modal_projector.linear_1.": "mlp1.1.",
    "multi_modal_projector.linear_2.": "mlp1.3.",
    "model.language_model.": "language_model.model.",
}
"""Parts of names of the vision model and the projector, by those of transformers."""

INTERNLM2 = {
    "embed_tokens.": "tok_embeddings.",
    "lm_head.": "output.",
    "self_attn.o_proj.": "attention.wo.",
    "input_layernorm.": "attention_norm.",
    "post_attention_layernorm.": "ffn_norm.",
    "mlp.gate_proj.": "feed_forward.w1.",
    "mlp.up_proj.": "feed_forward.w3.",
    "mlp.down_proj.": "feed_forward.w2.",
}
"""The same of the language model."""


def renamed(name: str, names: Mapping[str, str]) -> str:
    """A name with other parts."""
    for old, new in names.items():
        name = name.replace(old, new)
    return name


def published(tensors: Tensors, num_kv_heads: int, head_size: int) -> Tensors:
    """Tensors as the authors' files have them: queries, keys and values in one."""
    found: Tensors = {}
    packed: dict[str, dict[str, np.ndarray]] = {}
    for name, tensor in tensors.items():
        is_language = name.startswith(("language_model.", "lm_head.", "model.language_model."))
        new = renamed(name, NAMES | (INTERNLM2 if is_language else {}))
        new = f"language_model.{new}" if new.startswith("output.") else new
        if new.startswith("model."):
            new = new.removeprefix("model.")
        for part in ("q_proj", "k_proj", "v_proj"):
            if f".{part}." in new:
                target = "self_attn", "attention.wqkv"
                whole = new.replace(f"attention.{part}", "attn.qkv")
                whole = new.replace(f"{target[0]}.{part}", target[1]) if is_language else whole
                packed.setdefault(whole, {})[part] = tensor
                break
        else:
            found[new] = tensor
    for name, each_part in packed.items():
        parts = [each_part[part] for part in ("q_proj", "k_proj", "v_proj")]
        if "wqkv" in name:
            # The queries of each key-value head, its keys and its values lie side by side.
            heads = [each.reshape(num_kv_heads, -1, head_size, each.shape[1]) for each in parts]
            parts = [np.concatenate(heads, axis=1).reshape(-1, parts[0].shape[1])]
        found[name] = np.ascontiguousarray(np.concatenate(parts))
    return found


def model(config: Any) -> InternVLForConditionalGeneration:
    """A model that is written as published."""
    made = InternVLForConditionalGeneration(config)
    made.save_pretrained = partial(save, made)
    return made


def save(made: InternVLForConditionalGeneration, folder: Path) -> None:
    """Write the files of a checkpoint."""
    InternVLForConditionalGeneration.save_pretrained(made, folder)
    path = folder / "config.json"
    given = json.loads(path.read_text())
    text, vision = given["text_config"], given["vision_config"]
    kept = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "layer_norm_eps")
    found = {
        "architectures": ["InternVLChatModel"], "model_type": "internvl_chat", "downsample_ratio": 0.5,
        "dynamic_image_size": True, "force_image_size": 56, "max_dynamic_patch": 4, "min_dynamic_patch": 1,
        "ps_version": "v2", "select_layer": -1, "template": "internvl2_5", "use_backbone_lora": 0, "use_llm_lora": 0,
        "use_thumbnail": True, "pad2square": False, "dtype": "float32",
        "vision_config": {
            **{key: vision[key] for key in kept}, "architectures": ["InternVisionModel"], "model_type": "intern_vit_6b",
            "image_size": 56, "patch_size": 14, "norm_type": "layer_norm", "qk_normalization": True, "qkv_bias": True,
            "drop_path_rate": 0.1, "use_flash_attn": True, "use_moe": False, "num_experts": 8, "hidden_act": "gelu",
        },
        "llm_config": {
            **{key: text[key] for key in kept if key in text}, "architectures": ["InternLM2ForCausalLM"],
            "model_type": "internlm2", "num_key_value_heads": 2, "vocab_size": text["vocab_size"], "bias": False,
            "rms_norm_eps": text["rms_norm_eps"], "max_position_embeddings": 512, "rope_theta": 10000,
            "eos_token_id": 2, "bos_token_id": 1, "hidden_act": "silu", "num_beams": 1, "top_k": 50, "top_p": 1.0,
        },
    }  # fmt: skip
    path.write_text(json.dumps(found))
    weights = folder / "model.safetensors"
    save_file(published(load(weights.read_bytes()), 2, 16), weights)


class Processor(PartsProcessor):
    """With the files that published checkpoints have: none says how images are processed but config.json."""

    def save_pretrained(self, folder: Path) -> None:
        """Write them."""
        super().save_pretrained(folder)
        for name in ("processor_config.json", "preprocessor_config.json"):
            (folder / name).unlink()


def processor(tokenizer: Any) -> Processor:
    whole = newer_processor(tokenizer)
    whole.images.image_mean, whole.images.image_std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    made = object.__new__(Processor)
    made.__dict__ = {**whole.__dict__, "whole": whole.whole}
    return made


CASES = {
    "internvl published": SeeingCase(
        model, config({"use_qk_norm": True, "attention_bias": True}, {}), processor, tuple(TOKENS.values()),
        "<IMG_CONTEXT>", sizes=((56, 56), (60, 130), (130, 111)), inputs=inputs,
    )
}  # fmt: skip
