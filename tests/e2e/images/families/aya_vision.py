"""Aya Vision."""

from collections.abc import Mapping
from typing import Any

from transformers import AyaVisionConfig, AyaVisionForConditionalGeneration, AyaVisionProcessor
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

from tests.e2e.images.families.case import LLAMA, VISION, PartsProcessor, SeeingCase
from tests.e2e.images.families.internvl import inputs
from tests.e2e.images.families.llava import NEWER

TEXTS = {
    "image_token": "<image>", "img_patch_token": "<|IMG_PATCH|>", "start_of_img_token": "<|START_OF_IMG|>",
    "end_of_img_token": "<|END_OF_IMG|>", "tile_token": "TILE", "tile_global_token": "TILE_GLOBAL",
}  # fmt: skip


def config(vocab_size: int, ids: Mapping[str, int]) -> Any:
    return AyaVisionConfig(
        vision_config={**VISION, "model_type": "siglip_vision_model"},
        text_config={
            **LLAMA, "model_type": "cohere2", "vocab_size": vocab_size, "sliding_window": 40, "logit_scale": 0.5,
            "num_hidden_layers": 4,
        },
        image_token_id=ids["<|IMG_PATCH|>"],
        tie_word_embeddings=True,
        alignment_intermediate_size=48,
    )  # fmt: skip


def processor(tokenizer: Any) -> PartsProcessor:
    images = GotOcr2ImageProcessorPil(size={"height": 56, "width": 56}, crop_to_patches=True, max_patches=4)
    made = PartsProcessor(AyaVisionProcessor, images, tokenizer, TEXTS, patch_size=14, downsample_factor=2, img_size=56)
    # The class holds their product under the first name.
    made.whole.patch_size = 28
    return made


CASES = {
    "aya vision": SeeingCase(
        AyaVisionForConditionalGeneration, config, processor,
        ("<image>", "<|IMG_PATCH|>", "<|START_OF_IMG|>", "<|END_OF_IMG|>"),
        sizes=((56, 56), (60, 130), (130, 111)), inputs=inputs, renamed=(NEWER,),
    )
}  # fmt: skip
