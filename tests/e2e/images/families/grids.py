"""Families that see images of any size and rotate their tokens by rows and columns: Qwen's, GLM-4V and PaddleOCR-VL."""

from collections.abc import Callable, Mapping
from typing import Any

import transformers
from PIL import Image
from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil
from transformers.models.glm46v.image_processing_pil_glm46v import Glm46VImageProcessorPil
from transformers.models.paddleocr_vl.image_processing_pil_paddleocr_vl import PaddleOCRVLImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from tests.e2e.images.families.case import PartsProcessor, SeeingCase
from tests.e2e.images.qwen import FAMILIES, GLM, OTHERS, ROPE, TEXT, Seeing

MARKER = "<|image|>"
SIDE, LONGEST = 8, 48
"""Pixels of what becomes a token, and of a square that has as many pixels as an image may have."""
CLIP_MEAN, CLIP_STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
SIZE = {"shortest_edge": SIDE**2, "longest_edge": LONGEST**2}
IMAGES: Mapping[str, Callable[[], Any]] = {
    "Glm4v": lambda: Glm4vImageProcessorPil(
        patch_size=4, merge_size=2, size={"shortest_edge": 2 * SIDE**2, "longest_edge": 2 * LONGEST**2}
    ),
    "GlmOcr": lambda: Glm46VImageProcessorPil(
        patch_size=4, merge_size=2, size={"shortest_edge": 2 * SIDE**2, "longest_edge": 2 * LONGEST**2}
    ),
    "PaddleOCRVL": lambda: PaddleOCRVLImageProcessorPil(
        patch_size=4, merge_size=2, size=SIZE, image_mean=CLIP_MEAN, image_std=CLIP_STD
    ),
}
"""Image processors of families that have none of Qwen's."""
ALL = {
    **FAMILIES, **OTHERS,
    "glm_ocr": Seeing(
        "GlmOcr", {key: value for key, value in GLM.items() if key != "image_size"}, {"mrope_section": [2, 3, 3]},
        {"head_dim": 16},
    ),
}  # fmt: skip
PROCESSORS = {"GlmOcr": "Glm46V"}
"""Families that have another's."""


def config(name: str) -> Callable[[int, Mapping[str, int]], Any]:
    family = ALL[name]

    def make(vocab_size: int, ids: Mapping[str, int]) -> Any:
        return getattr(transformers, f"{family.name}Config")(
            text_config={**TEXT, **family.text, "vocab_size": vocab_size, "rope_parameters": {**ROPE, **family.rope}},
            vision_config=family.vision,
            tie_word_embeddings=False,
            image_token_id=ids[MARKER],
        )

    return make


def processor(name: str) -> Callable[[Any], PartsProcessor]:
    family = ALL[name]

    def make(tokenizer: Any) -> PartsProcessor:
        tokenizer.init_kwargs["image_token"] = MARKER
        images = IMAGES.get(family.name, lambda: Qwen2VLImageProcessorPil(patch_size=4, merge_size=2, size=SIZE))()
        kind = getattr(transformers, f"{PROCESSORS.get(family.name, family.name)}Processor")
        return PartsProcessor(kind, images, tokenizer, {"image_token": MARKER})

    return make


def inputs(processor: Any, text: str, images: list[Image.Image]) -> dict[str, Any]:
    """What a processor makes of a prompt, and which of its tokens are those of images."""
    found = dict(processor(text, images, "pt"))
    token = processor.tokenizer.convert_tokens_to_ids(MARKER)
    return {**found, "mm_token_type_ids": (found["input_ids"] == token).int()}


CASES = {
    name: SeeingCase(
        getattr(transformers, f"{family.name}ForConditionalGeneration"),
        config(name),
        processor(name),
        (MARKER,),
        MARKER,
        sizes=((30, 40), (8, 8), (3, 90), (40, 15)),
        inputs=inputs,
        spread=0.2,
    )
    for name, family in ALL.items()
    if name in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "glm4v", "glm_ocr", "paddleocr_vl")
}
