"""Small Qwens that see images of any size, and the answers that transformers gives with them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from jaxllm.executor.media_calls import patch_places
from jaxllm.requests.media import ImageCrop
from tests.e2e.images.qwen_prompts import END, IMAGE, MERGE, PATCH, START, VIDEO, Parts, crop_of, token_ids

MEAN = np.array((0.48145466, 0.4578275, 0.40821073), np.float32)
STD = np.array((0.26862954, 0.26130258, 0.27577711), np.float32)

TEXT: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "tie_word_embeddings": False,
}  # fmt: skip
ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
VISION = {"depth": 3, "num_heads": 2, "patch_size": PATCH, "spatial_merge_size": MERGE}
DEEP = {**VISION, "hidden_size": 32, "intermediate_size": 40, "out_hidden_size": 64, "num_position_embeddings": 25}
DELTA = {
    "rms_norm_eps": 1e-2, "layer_types": ["linear_attention", "linear_attention", "full_attention"], "head_dim": 16,
    "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 8, "linear_value_head_dim": 12,
}  # fmt: skip


@dataclass(frozen=True)
class Seeing:
    """A family: transformers' names without endings, and the options of both parts."""

    name: str
    vision: dict[str, Any]
    rope: dict[str, Any]
    text: dict[str, Any] = field(default_factory=dict)


FAMILIES = {
    "qwen2_vl": Seeing(
        "Qwen2VL", {**VISION, "embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2}, {"mrope_section": [2, 3, 3]}
    ),
    "qwen2_5_vl": Seeing(
        "Qwen2_5_VL",
        {
            **VISION, "hidden_size": 32, "intermediate_size": 40, "out_hidden_size": 64, "window_size": 16,
            "fullatt_block_indexes": [1],
        },
        {"mrope_section": [2, 3, 3]},
    ),
    "qwen3_vl": Seeing(
        "Qwen3VL", {**DEEP, "deepstack_visual_indexes": [0, 2]}, {"mrope_section": [4, 2, 2]}, {"head_dim": 16}
    ),
    "qwen3_5": Seeing("Qwen3_5", DEEP, {"mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5}, DELTA),
}  # fmt: skip
GLM = {
    **VISION, "hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 64, "image_size": 20, "rms_norm_eps": 1e-5,
}  # fmt: skip
OTHERS = {
    "glm4v": Seeing("Glm4v", GLM, {"mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5}),
    "glm46v": Seeing(
        "Glm46V", {**GLM, "attention_bias": True}, {"mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5}
    ),
    "glm4v_moe": Seeing(
        "Glm4vMoe", GLM, {"mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5},
        {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 16},
    ),
    "paddleocr_vl": Seeing(
        "PaddleOCRVL",
        {
            "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 2,
            "image_size": 20, "patch_size": PATCH, "spatial_merge_size": MERGE,
        },
        {"mrope_section": [2, 3, 3]}, {"head_dim": 16, "use_bias": True},
    ),
}  # fmt: skip
"""Families that rotate tokens of images likewise."""


def make_model(
    family: Seeing, tokens: tuple[int, ...] = (START, END, IMAGE, VIDEO), vocab_size: int = VIDEO + 1
) -> Any:
    """A model with random weights, whose answers depend on images."""
    start, end, image, video = tokens
    torch.manual_seed(0)
    config = getattr(transformers, f"{family.name}Config")(
        text_config={**TEXT, **family.text, "vocab_size": vocab_size, "rope_parameters": {**ROPE, **family.rope}},
        vision_config=family.vision, tie_word_embeddings=False, attn_implementation="eager",
        image_token_id=image, video_token_id=video, vision_start_token_id=start, vision_end_token_id=end,
    )  # fmt: skip
    model = getattr(transformers, f"{family.name}ForConditionalGeneration")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_norm = "norm" in name or "ln_q" in name
            parameter.copy_(torch.randn_like(parameter) * (0.2 if is_norm else 0.15) + float(is_norm))
            if name.endswith("A_log"):
                parameter.copy_(torch.randn_like(parameter) * 0.5 - 1.0)
            if name.endswith(("embed_tokens.weight", "pos_embed.weight", "patch_embed.proj.weight")):
                parameter.mul_(4)
    return model


def save(family: Seeing, folder: Path) -> Any:
    """Write such a model, and return it."""
    model = make_model(family)
    model.save_pretrained(folder)
    return model


def floats(crop: ImageCrop, model: Any) -> torch.Tensor:
    """A crop as a model of transformers takes it: [P, channels * frames * height * width].

    PaddleOCR's has patches [P, channels, height, width], line by line.
    """
    whole = crop.patches.reshape(-1, PATCH, PATCH, 3).astype(np.float32)
    numbers = ((whole * np.float32(1 / 255) - MEAN) / STD).transpose(0, 3, 1, 2)[:, :, None]
    if model.config.model_type == "paddleocr_vl":
        places = patch_places(crop.height, crop.width, MERGE)
        return torch.from_numpy(numbers[np.argsort(places[:, 0] * crop.width + places[:, 1]), :, 0])
    return torch.from_numpy(np.repeat(numbers, 2, axis=2).reshape(len(whole), -1))


def inputs_of(prompt: Parts, model: Any) -> dict[str, Any]:
    """The arguments of a model of transformers for a prompt."""
    ids = torch.tensor([token_ids(prompt)])
    found: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    crops = [crop_of(part) for part in prompt if not isinstance(part, int)]
    if crops:
        found |= {
            "pixel_values": torch.cat([floats(crop, model) for crop in crops]),
            "image_grid_thw": torch.tensor([[1, crop.height, crop.width] for crop in crops]),
            "mm_token_type_ids": (ids == IMAGE).int(),
        }
    return found


def expected(model: Any, prompt: Parts, count: int) -> list[int]:
    """The tokens that transformers continues a prompt with."""
    inputs = inputs_of(prompt, model)
    # It keeps how far the last prompt was ahead.
    model.model.rope_deltas = None
    found = model.generate(**inputs, max_new_tokens=count, do_sample=False, eos_token_id=None)
    return [int(token) for token in found[0][inputs["input_ids"].shape[1] :]]
