"""Janus, which sees."""

from collections.abc import Mapping
from typing import Any

from transformers import JanusConfig, JanusForConditionalGeneration, JanusProcessor
from transformers.models.janus.image_processing_pil_janus import JanusImageProcessorPil

from tests.e2e.images.families.case import LLAMA, VISION, PartsProcessor, SeeingCase

TOKENS = {"image_token": "<image_placeholder>", "boi_token": "<begin_of_image>", "eoi_token": "<end_of_image>"}


def config(vocab_size: int, ids: Mapping[str, int]) -> Any:
    vision = {name: value for name, value in VISION.items() if name != "intermediate_size"}
    return JanusConfig(
        vision_config={**vision, "mlp_ratio": 1.5, "projection_dim": LLAMA["hidden_size"]},
        text_config={**LLAMA, "vocab_size": vocab_size},
        vq_config={
            "base_channels": 32, "channel_multiplier": [1, 1], "num_res_blocks": 1, "latent_channels": 32,
            "num_embeddings": 16, "image_token_embed_dim": 32, "projection_dim": 32,
        },
        image_token_id=ids["<image_placeholder>"],
        tie_word_embeddings=False,
    )  # fmt: skip


def processor(tokenizer: Any) -> PartsProcessor:
    images = JanusImageProcessorPil(size={"height": 56, "width": 56})
    tokenizer.init_kwargs.update(TOKENS)
    start, end = {"image_start_token": TOKENS["boi_token"]}, {"image_end_token": TOKENS["eoi_token"]}
    return PartsProcessor(JanusProcessor, images, tokenizer, {**TOKENS, **start, **end}, num_image_tokens=16)


CASES = {
    "janus": SeeingCase(JanusForConditionalGeneration, config, processor, tuple(TOKENS.values()), "<image_placeholder>")
}
