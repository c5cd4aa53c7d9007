"""LLaVA 1.5."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from transformers import (
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    VipLlavaConfig,
    VipLlavaForConditionalGeneration,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from tests.e2e.images.families.case import LLAMA, VISION, SeeingCase

CLIP, SIGLIP = ({**VISION, "model_type": f"{name}_vision_model"} for name in ("clip", "siglip"))
NEWER = {
    "language_model.model.": "model.language_model.",
    "language_model.lm_head.": "lm_head.",
    "vision_tower.": "model.vision_tower.",
    "multi_modal_projector.": "model.multi_modal_projector.",
}
OLDER = {"vision_tower.": "vision_tower.vision_model."}


def config(
    vision: Mapping[str, Any], text: Mapping[str, Any], kind: type[Any] = LlavaConfig, **options: Any
) -> Callable[..., Any]:
    def make(vocab_size: int, ids: Mapping[str, int]) -> Any:
        return kind(
            vision_config=vision,
            text_config={**LLAMA, **text, "vocab_size": vocab_size},
            image_token_index=ids["<image>"],
            **options,
        )

    return make


def processor(tokenizer: Any, *, siglip: bool = False, added: int, strategy: str) -> Any:
    images = (
        SiglipImageProcessorPil(size={"height": 56, "width": 56})
        if siglip
        else CLIPImageProcessorPil(size={"shortest_edge": 56}, crop_size=56)
    )
    return LlavaProcessor(
        images, tokenizer, patch_size=14, vision_feature_select_strategy=strategy, num_additional_image_tokens=added
    )


CASES = {
    "llava": SeeingCase(
        LlavaForConditionalGeneration,
        config(CLIP, {}),
        partial(processor, added=1, strategy="default"),
        renamed=(NEWER, OLDER),
    ),
    "llava full, two layers": SeeingCase(
        LlavaForConditionalGeneration,
        config(CLIP, {"model_type": "qwen2"}, vision_feature_layer=[1, -1], vision_feature_select_strategy="full"),
        partial(processor, added=1, strategy="full"),
    ),
    "llava siglip": SeeingCase(
        LlavaForConditionalGeneration,
        config(
            SIGLIP, {"model_type": "mistral"}, vision_feature_select_strategy="full", vision_feature_layer=-1,
            multimodal_projector_bias=False, projector_hidden_act="relu",
        ),
        partial(processor, siglip=True, added=0, strategy="full"),
        has_answers=False,
    ),
    "vip-llava": SeeingCase(
        VipLlavaForConditionalGeneration,
        config(CLIP, {}, VipLlavaConfig, vision_feature_layer=[-2, -3, 1]),
        partial(processor, added=1, strategy="default"),
        renamed=(NEWER,),
    ),
}  # fmt: skip
