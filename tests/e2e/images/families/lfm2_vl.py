"""LFM2-VL."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from transformers import Lfm2VlConfig, Lfm2VlForConditionalGeneration

from jaxllm.serving.media.image_processors.arithmetic import normalised, patches
from tests.e2e.images.families.case import LLAMA, VISION, OwnPixels, PartsProcessor, SeeingCase, processed

PATCH, MOST = 14, 16
FIELDS = {
    "encoder_patch_size": PATCH, "tile_size": 56, "max_tiles": 4, "min_image_tokens": 2, "max_image_tokens": 4,
    "downsample_factor": 2, "use_thumbnail": True,
}  # fmt: skip
TOKENS = {
    "image_token": "<image>", "image_start_token": "<|image_start|>", "image_end_token": "<|image_end|>",
    "image_thumbnail_token": "<|img_thumbnail|>",
}  # fmt: skip


class Lfm2VlProcessor(transformers.Lfm2VlProcessor):
    """As it writes images when it is called as a whole."""

    def replace_image_token(self, image_inputs: dict[str, Any], image_idx: int, **kwargs: Any) -> str:
        text: str = super().replace_image_token(image_inputs, image_idx, use_image_special_tokens=True)
        return text


class OwnPatches(OwnPixels):
    """With patches of several crops, filled up to one number."""

    use_thumbnail, tile_size, encoder_patch_size, downsample_factor = True, 56, PATCH, 2

    def __call__(self, images: list[Image.Image], return_tensors: str) -> dict[str, Any]:
        found = [self.processor.process(np.asarray(image)) for image in images]
        crops = [crop for each in found for crop in each.crops]
        numbers = np.zeros((len(crops), MOST, PATCH * PATCH * 3), np.float32)
        mask = np.zeros((len(crops), MOST), np.int32)
        for number, crop in enumerate(crops):
            rows = patches(crop, PATCH)
            floats = normalised(rows.reshape(len(rows), -1, 3), self.processor.normalisation)
            numbers[number, : len(rows)] = floats.reshape(len(rows), -1)
            mask[number, : len(rows)] = 1
        shapes = [(crop.shape[0] // PATCH, crop.shape[1] // PATCH) for crop in crops]
        return {
            "pixel_values": torch.from_numpy(numbers),
            "pixel_attention_mask": torch.from_numpy(mask),
            "spatial_shapes": torch.tensor(shapes),
            "image_rows": [each.rows or 1 for each in found],
            "image_cols": [each.columns or 1 for each in found],
            "image_sizes": [each.crops[-1].shape[:2] for each in found],
        }


def config(vocab_size: int, ids: Mapping[str, int]) -> Any:
    """Learned positions of 3 by 3 patches."""
    return Lfm2VlConfig(
        vision_config={
            **{key: value for key, value in VISION.items() if key != "image_size"},
            "model_type": "siglip2_vision_model", "num_patches": 9, "vision_use_head": False,
        },
        text_config={
            **LLAMA, "model_type": "lfm2", "vocab_size": vocab_size, "layer_types": ["conv", "full_attention"],
            "block_auto_adjust_ff_dim": False,
        },
        image_token_id=ids["<image>"],
        projector_hidden_size=48,
        tie_word_embeddings=False,
    )  # fmt: skip


def with_experts(vocab_size: int, ids: Mapping[str, int]) -> Any:
    """The same with experts in the second layer."""
    found = config(vocab_size, ids).to_dict()
    text = {
        **LLAMA, "model_type": "lfm2_moe", "vocab_size": vocab_size, "layer_types": ["conv", "full_attention"],
        "num_dense_layers": 1, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
    }  # fmt: skip
    return Lfm2VlConfig(**{**found, "text_config": text})


def processor(tokenizer: Any) -> PartsProcessor:
    tokenizer.init_kwargs.update(TOKENS)
    pixels = OwnPatches(image_processor_type="Lfm2VlImageProcessor", **FIELDS)
    return PartsProcessor(Lfm2VlProcessor, pixels, tokenizer, TOKENS)


def inputs(processor: Any, text: str, images: list[Any]) -> dict[str, Any]:
    found = processed(processor, text, images)
    return {name: value for name, value in found.items() if not name.startswith("image_")}


PLACES = tuple(f"<|img_row_{row}_col_{column}|>" for row in (1, 2) for column in (1, 2))
CASES = {
    "lfm2-vl": SeeingCase(
        Lfm2VlForConditionalGeneration, config, processor, (*TOKENS.values(), *PLACES),
        sizes=((56, 56), (26, 110), (130, 111)), inputs=inputs,
    ),
    "lfm2-vl with experts": SeeingCase(
        Lfm2VlForConditionalGeneration, with_experts, processor, (*TOKENS.values(), *PLACES),
        sizes=((26, 110), (56, 56)), inputs=inputs,
    ),
}  # fmt: skip
