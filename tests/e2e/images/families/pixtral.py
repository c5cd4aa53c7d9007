"""Pixtral and Mistral 3: images of any shape; each line of an image has a token at its end."""

from collections.abc import Mapping
from typing import Any

from transformers import (
    LightOnOcrConfig,
    LightOnOcrForConditionalGeneration,
    LightOnOcrProcessor,
    LlavaConfig,
    LlavaForConditionalGeneration,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
)
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil

from tests.e2e.images.families.case import LLAMA, VISION, PartsProcessor, SeeingCase
from tests.e2e.images.families.llava import NEWER

TOKENS = {"image_token": "[IMG]", "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]"}
PIXTRAL = {**VISION, "model_type": "pixtral", "image_size": 80, "patch_size": 4, "hidden_act": "silu"}
"""At most 400 patches: small images and large ones have a program each."""
TEXT = {**LLAMA, "max_position_embeddings": 1024}
SIZES = ((25, 37), (80, 80), (30, 200), (300, 90))


def pixtral(vocab_size: int, ids: Mapping[str, int]) -> Any:
    return LlavaConfig(
        vision_config=PIXTRAL,
        text_config={**TEXT, "model_type": "mistral", "vocab_size": vocab_size},
        image_token_id=ids["[IMG]"],
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )


def mistral3(vocab_size: int, ids: Mapping[str, int]) -> Any:
    rope = {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "mscale": 1.0,
        "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3, "rope_theta": 1000.0,
    }  # fmt: skip
    return Mistral3Config(
        vision_config={**PIXTRAL, "rope_parameters": {"rope_type": "axial", "rope_theta": 100.0}},
        text_config={**TEXT, "model_type": "ministral3", "vocab_size": vocab_size, "rope_parameters": rope},
        image_token_id=ids["[IMG]"],
        tie_word_embeddings=False,
    )


def lighton(vocab_size: int, ids: Mapping[str, int]) -> Any:
    return LightOnOcrConfig(
        vision_config=PIXTRAL,
        text_config={**TEXT, "model_type": "qwen3", "vocab_size": vocab_size, "head_dim": 16},
        image_token_id=ids["[IMG]"],
        tie_word_embeddings=False,
    )


def lighton_processor(tokenizer: Any) -> PartsProcessor:
    """Tokens of patches alone; its tokenizer names them."""
    tokenizer.init_kwargs["image_token"] = "[IMG]"
    images = PixtralImageProcessorPil(size={"longest_edge": 80}, patch_size=8)
    made = PartsProcessor(LightOnOcrProcessor, images, tokenizer, TOKENS, patch_size=4, spatial_merge_size=2)
    made.whole.effective_patch_size = 8
    return made


class Pixtral(PartsProcessor):
    """By hand: transformers' processor cannot be imported without torchvision."""

    def __init__(self, merge: int, tokenizer: Any) -> None:
        images = PixtralImageProcessorPil(size={"longest_edge": 80}, patch_size=4 * merge)
        super().__init__("PixtralProcessor", images, tokenizer, TOKENS, patch_size=4, spatial_merge_size=merge)
        self.whole, self.side = self, 4 * merge

    def replace_image_token(self, found: Mapping[str, Any], number: int) -> str:
        height, width = (int(length) // self.side for length in found["image_sizes"][number])
        line = "[IMG]" * width
        return "[IMG_BREAK]".join([line] * height) + "[IMG_END]"


def case(model: type[Any], config: Any, merge: int) -> SeeingCase:
    return SeeingCase(
        model, config, lambda tokenizer: Pixtral(merge, tokenizer), tuple(TOKENS.values()), "[IMG]", sizes=SIZES,
        engine={"max_model_len": 1024}, renamed=(NEWER,),
    )  # fmt: skip


CASES = {
    "pixtral": case(LlavaForConditionalGeneration, pixtral, 1),
    "mistral 3": case(Mistral3ForConditionalGeneration, mistral3, 2),
    "lighton ocr": SeeingCase(
        LightOnOcrForConditionalGeneration, lighton, lighton_processor, tuple(TOKENS.values()), "[IMG]", sizes=SIZES,
        engine={"max_model_len": 1024},
    ),
}  # fmt: skip
