"""Command A Vision."""

from collections.abc import Mapping
from typing import Any

from transformers import Cohere2VisionConfig, Cohere2VisionForConditionalGeneration, Cohere2VisionProcessor

from tests.e2e.images.families.case import LLAMA, VISION, OwnPixels, PartsProcessor, SeeingCase, only_pixels

TOKENS = {
    "image_token": "<|IMG_PATCH|>", "boi_token": "<|START_OF_IMG|>", "eoi_token": "<|END_OF_IMG|>",
    "img_line_break_token": "<|IMG_LINE_BREAK|>",
}  # fmt: skip


def config(vocab_size: int, ids: Mapping[str, int]) -> Any:
    return Cohere2VisionConfig(
        vision_config={**VISION, "model_type": "siglip_vision_model"},
        text_config={
            **LLAMA, "model_type": "cohere2", "vocab_size": vocab_size, "sliding_window": 40, "logit_scale": 0.5,
        },
        image_token_id=ids["<|IMG_PATCH|>"],
        alignment_intermediate_size=48,
    )  # fmt: skip


def processor(tokenizer: Any) -> PartsProcessor:
    kind, size = "Cohere2VisionImageProcessor", {"height": 56, "width": 56}
    pixels = OwnPixels(image_processor_type=kind, size=size, max_patches=4, patch_size=2)
    tokenizer.init_kwargs.update(TOKENS)
    made = PartsProcessor(Cohere2VisionProcessor, pixels, tokenizer, TOKENS)
    made.whole.patch_size = 2
    return made


CASES = {
    "cohere 2 vision": SeeingCase(
        Cohere2VisionForConditionalGeneration, config, processor, tuple(TOKENS.values()), "<|IMG_PATCH|>",
        sizes=((56, 56), (60, 130), (130, 111)), inputs=only_pixels,
    )
}  # fmt: skip
