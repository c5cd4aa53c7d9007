"""DeepSeek-VL."""

from collections.abc import Mapping
from typing import Any

from transformers import DeepseekVLConfig, DeepseekVLForConditionalGeneration, DeepseekVLProcessor
from transformers.models.deepseek_vl.image_processing_pil_deepseek_vl import DeepseekVLImageProcessorPil

from tests.e2e.images.families.case import LLAMA, PartsProcessor, SeeingCase
from tests.e2e.images.families.llava import SIGLIP

TOKENS = {"image_token": "<image_placeholder>"}


def config(vocab_size: int, ids: Mapping[str, int]) -> Any:
    return DeepseekVLConfig(
        vision_config={**SIGLIP, "vision_use_head": False},
        text_config={**LLAMA, "vocab_size": vocab_size},
        image_token_id=ids["<image_placeholder>"],
        tie_word_embeddings=False,
    )


def processor(tokenizer: Any) -> PartsProcessor:
    images = DeepseekVLImageProcessorPil(size={"height": 56, "width": 56})
    tokenizer.init_kwargs.update(TOKENS)
    return PartsProcessor(DeepseekVLProcessor, images, tokenizer, TOKENS, num_image_tokens=16)


CASES = {
    "deepseek-vl": SeeingCase(
        DeepseekVLForConditionalGeneration, config, processor, tuple(TOKENS.values()), "<image_placeholder>"
    )
}
