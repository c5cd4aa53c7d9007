"""Kimi-K2.5."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import Kimi_K25Config, Kimi_K25ForConditionalGeneration, Kimi_K25Processor

from jaxllm.serving.media.image_processors.arithmetic import normalised, patches
from tests.e2e.images.families.case import LLAMA, OwnPixels, PartsProcessor, SeeingCase

PATCH = 14


class OwnPatches(OwnPixels):
    """With the patches of all images."""

    merge_size = 2

    def __call__(self, images: list[Image.Image], return_tensors: str) -> dict[str, Any]:
        found = [self.processor.process(np.asarray(image)) for image in images]
        rows = np.concatenate([patches(each.crops[0], PATCH) for each in found])
        numbers = normalised(rows.reshape(-1, PATCH, PATCH, 3), self.processor.normalisation)
        return {
            "pixel_values": torch.from_numpy(numbers.transpose(0, 3, 1, 2).copy()),
            "image_grid_thw": torch.tensor([(1, each.rows, each.columns) for each in found]),
        }


def config(vocab_size: int, ids: Mapping[str, int]) -> Any:
    """Learned positions of fewer patches than an image has, and of more."""
    text = {key: value for key, value in LLAMA.items() if key not in ("model_type", "num_key_value_heads")}
    return Kimi_K25Config(
        vision_config={
            "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
            "pos_emb_height": 5, "pos_emb_width": 5,
        },
        text_config={
            **text, "model_type": "deepseek_v3", "vocab_size": vocab_size, "kv_lora_rank": 16, "q_lora_rank": 16,
            "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "n_routed_experts": 4,
            "num_experts_per_tok": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 1, "n_group": 1,
            "topk_group": 1, "num_key_value_heads": 4,
        },
        projection_hidden_size=64,
        image_token_id=ids["<|media_pad|>"],
        tie_word_embeddings=False,
    )  # fmt: skip


def processor(tokenizer: Any) -> PartsProcessor:
    pixels = OwnPatches(image_processor_type="Kimi_K25ImageProcessor", max_patches=36)
    return PartsProcessor(Kimi_K25Processor, pixels, tokenizer, {"image_token": "<|media_pad|>"})


PUBLISHED = {
    "language_model.model.blocks.": "language_model.model.layers.",
    "vision_tower.encoder.patch_embed.": "vision_tower.patch_embed.",
    "model.mm_projector.": "mm_projector.",
}
"""Beginnings of names that transformers 5.24 does not write as it reads them."""

CASES = {
    "kimi-k2.5": SeeingCase(
        Kimi_K25ForConditionalGeneration, config, processor, ("<|media_pad|>",), "<|media_pad|>",
        sizes=((56, 56), (26, 110), (130, 111)), renamed=(PUBLISHED,),
    )
}  # fmt: skip
