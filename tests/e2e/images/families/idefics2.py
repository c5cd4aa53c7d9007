"""Idefics 2: crops of any shape; each becomes the same number of rows."""

from collections.abc import Mapping
from typing import Any

from transformers import Idefics2Config, Idefics2ForConditionalGeneration, Idefics2Processor
from transformers.models.idefics2.image_processing_pil_idefics2 import Idefics2ImageProcessorPil

from tests.e2e.images.families.case import LLAMA, VISION, SeeingCase


def config(vocab_size: int, ids: Mapping[str, int]) -> Any:
    return Idefics2Config(
        vision_config={**VISION, "image_size": 80, "patch_size": 4},
        perceiver_config={
            "resampler_n_latents": 5, "resampler_depth": 2, "resampler_n_heads": 4, "num_key_value_heads": 2,
            "resampler_head_dim": 12, "hidden_size": 64,
        },
        text_config={**LLAMA, "model_type": "mistral", "vocab_size": vocab_size},
        image_token_id=ids["<image>"],
        tie_word_embeddings=False,
    )  # fmt: skip


def processor(tokenizer: Any) -> Any:
    images = Idefics2ImageProcessorPil(size={"shortest_edge": 30, "longest_edge": 80}, do_image_splitting=True)
    return Idefics2Processor(images, tokenizer, image_seq_len=5)


def inputs(processor: Any, text: str, images: list[Any]) -> dict[str, Any]:
    return dict(processor(text=text, images=[images], return_tensors="pt"))


CASES = {
    "idefics2": SeeingCase(
        Idefics2ForConditionalGeneration, config, processor, ("<image>", "<fake_token_around_image>"), inputs=inputs,
        sizes=((80, 80), (40, 140), (300, 75)), spread=0.2,
    )
}  # fmt: skip
