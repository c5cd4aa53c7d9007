"""InternVL."""

from collections.abc import Callable, Mapping
from typing import Any

from transformers import (
    InternVLConfig,
    InternVLForConditionalGeneration,
    InternVLProcessor,
    QianfanOCRConfig,
    QianfanOCRForConditionalGeneration,
    QianfanOCRProcessor,
)
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

from tests.e2e.images.families.case import LLAMA, VISION, PartsProcessor, SeeingCase, processed
from tests.e2e.images.families.llava import NEWER

TOKENS = {"context_image_token": "<IMG_CONTEXT>", "start_image_token": "<img>", "end_image_token": "</img>"}


def config(vision: Mapping[str, Any], text: Mapping[str, Any], **options: Any) -> Callable[..., Any]:
    def make(vocab_size: int, ids: Mapping[str, int]) -> Any:
        return InternVLConfig(
            vision_config={**VISION, "layer_scale_init_value": 1.0, **vision},
            text_config={**LLAMA, "vocab_size": vocab_size, **text},
            image_token_id=ids["<IMG_CONTEXT>"],
            tie_word_embeddings=False,
            **options,
        )

    return make


def processor(tokenizer: Any) -> PartsProcessor:
    images = GotOcr2ImageProcessorPil(size={"height": 56, "width": 56}, crop_to_patches=True, max_patches=4)
    texts = {"image_token": "<IMG_CONTEXT>", **TOKENS}
    tokenizer.init_kwargs.update(TOKENS)
    return PartsProcessor(InternVLProcessor, images, tokenizer, texts, image_seq_length=4)


def inputs(processor: Any, text: str, images: list[Any]) -> dict[str, Any]:
    found = processed(processor, text, images)
    found.pop("num_patches")
    return found


def case(vision: Mapping[str, Any], text: Mapping[str, Any], has_answers: bool = True, **options: Any) -> SeeingCase:
    return SeeingCase(
        InternVLForConditionalGeneration, config(vision, text, **options), processor, tuple(TOKENS.values()),
        "<IMG_CONTEXT>", sizes=((56, 56), (60, 130), (130, 111)), inputs=inputs, has_answers=has_answers,
        renamed=() if vision else (NEWER,),
    )  # fmt: skip


def qianfan_config(vocab_size: int, ids: Mapping[str, int]) -> Any:
    return QianfanOCRConfig(
        vision_config={**VISION, "layer_scale_init_value": 1.0},
        text_config={**LLAMA, "vocab_size": vocab_size, "model_type": "qwen3", "head_dim": 16},
        image_token_id=ids["<IMG_CONTEXT>"],
    )


def qianfan_processor(tokenizer: Any) -> PartsProcessor:
    images = GotOcr2ImageProcessorPil(size={"height": 56, "width": 56}, crop_to_patches=True, max_patches=4)
    texts = {"image_placeholder_token": "<image>", "image_token": "<IMG_CONTEXT>", **TOKENS}
    tokenizer.init_kwargs.update(TOKENS)
    return PartsProcessor(QianfanOCRProcessor, images, tokenizer, texts, image_seq_length=4)


CASES = {
    "qianfan-ocr": SeeingCase(
        QianfanOCRForConditionalGeneration, qianfan_config, qianfan_processor, tuple(TOKENS.values()),
        "<image>", sizes=((56, 56), (60, 130), (130, 111)), inputs=inputs,
    ),
    "internvl": case({}, {"model_type": "qwen2"}),
    "internvl large": case(
        {"norm_type": "rms_norm", "use_qk_norm": True, "attention_bias": True},
        {"model_type": "qwen3", "head_dim": 16},
        vision_feature_layer=-2,
    ),
    "internvl class": case({"use_mean_pooling": False}, {}, has_answers=False),
}  # fmt: skip
