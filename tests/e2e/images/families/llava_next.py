"""LLaVA-NeXT and LLaVA-OneVision: tiles, without their padding, and lines that end with a learned row."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from transformers import (
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    LlavaNextProcessor,
    LlavaNextVideoConfig,
    LlavaNextVideoForConditionalGeneration,
    LlavaNextVideoProcessor,
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    LlavaOnevisionProcessor,
)
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
from transformers.models.llava_onevision.image_processing_pil_llava_onevision import LlavaOnevisionImageProcessorPil

from tests.e2e.images.families.case import LLAMA, PartsProcessor, SeeingCase
from tests.e2e.images.families.llava import CLIP, NEWER, OLDER, SIGLIP

GRID = [[56, 112], [112, 56], [112, 112], [168, 56], [56, 168]]
SIZES = ((56, 56), (100, 37), (30, 140), (120, 111))


def config(vocab_size: int, ids: Mapping[str, int]) -> Any:
    return LlavaNextConfig(
        vision_config=CLIP,
        text_config={**LLAMA, "model_type": "mistral", "vocab_size": vocab_size},
        image_token_id=ids["<image>"],
        image_grid_pinpoints=GRID,
    )


def next_video(vocab_size: int, ids: Mapping[str, int]) -> Any:
    """Videos are of means of four patches."""
    return LlavaNextVideoConfig(
        vision_config=CLIP, text_config={**LLAMA, "vocab_size": vocab_size}, image_token_index=ids["<image>"],
        video_token_index=vocab_size - 1, image_grid_pinpoints=GRID,
    )  # fmt: skip


def granite(vocab_size: int, ids: Mapping[str, int]) -> Any:
    """Granite Vision: several layers of SigLIP, and embeddings that are multiplied, those of images as well."""
    return LlavaNextConfig(
        vision_config=SIGLIP,
        text_config={**LLAMA, "model_type": "granite", "vocab_size": vocab_size, "embedding_multiplier": 3.0},
        image_token_id=ids["<image>"],
        image_grid_pinpoints=GRID,
        vision_feature_layer=[-3, -1],
        vision_feature_select_strategy="full",
    )


def one_vision(vocab_size: int, ids: Mapping[str, int]) -> Any:
    return LlavaOnevisionConfig(
        # Not all of an image's pixels are in whole patches.
        vision_config={**SIGLIP, "image_size": 56, "patch_size": 13},
        text_config={**LLAMA, "model_type": "qwen2", "vocab_size": vocab_size},
        image_token_id=ids["<image>"],
        video_token_id=vocab_size - 1,
        image_grid_pinpoints=GRID,
        vision_aspect_ratio="anyres_max_2",
    )


def processor(tokenizer: Any, strategy: str = "default", added: int = 1) -> Any:
    images = LlavaNextImageProcessorPil(image_grid_pinpoints=GRID, crop_size=56, size={"shortest_edge": 56})
    return LlavaNextProcessor(
        images, tokenizer, patch_size=14, vision_feature_select_strategy=strategy, num_additional_image_tokens=added
    )


def next_video_processor(tokenizer: Any) -> PartsProcessor:
    """Images as LLaVA-NeXT has them."""
    images = LlavaNextImageProcessorPil(image_grid_pinpoints=GRID, crop_size=56, size={"shortest_edge": 56})
    fields = {"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    return PartsProcessor(LlavaNextVideoProcessor, images, tokenizer, {"image_token": "<image>"}, **fields)


def one_vision_processor(tokenizer: Any) -> Any:
    """Images of four tiles, or three in a row, are reduced to two."""
    images = LlavaOnevisionImageProcessorPil(image_grid_pinpoints=GRID, size={"height": 56, "width": 56})
    fields = {
        "num_image_tokens": 16, "vision_feature_select_strategy": "full", "vision_aspect_ratio": "anyres_max_2"
    }  # fmt: skip
    return PartsProcessor(LlavaOnevisionProcessor, images, tokenizer, {"image_token": "<image>"}, **fields)


LINES = {"image_newline": "model.image_newline"}

CASES = {
    "llava next": SeeingCase(
        LlavaNextForConditionalGeneration, config, processor, sizes=SIZES, renamed=({**NEWER, **LINES}, OLDER)
    ),
    "llava next video": SeeingCase(
        LlavaNextVideoForConditionalGeneration,
        next_video,
        next_video_processor,
        ("<image>", "<video>"),
        sizes=SIZES,
        has_answers=False,  # See tests/e2e/videos/test_squares.py.
    ),
    "granite vision": SeeingCase(
        LlavaNextForConditionalGeneration, granite, partial(processor, strategy="full", added=0), sizes=SIZES
    ),
    "llava onevision": SeeingCase(
        LlavaOnevisionForConditionalGeneration,
        one_vision,
        one_vision_processor,
        tokens=("<image>", "<video>"),
        sizes=SIZES,
        renamed=({**NEWER, **LINES},),
    ),
}
