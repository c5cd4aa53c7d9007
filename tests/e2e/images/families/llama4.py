"""Llama 4."""

from collections.abc import Mapping
from typing import Any

import torch
import transformers
from transformers import Llama4Config, Llama4Processor

from tests.e2e.images.families.case import LLAMA, VISION, OwnPixels, PartsProcessor, SeeingCase, only_pixels

TEXTS = {"image_token": "<|image|>"}
TOKENS = (
    "<|image|>", "<|patch|>", "<|image_start|>", "<|image_end|>", "<|tile_x_separator|>", "<|tile_y_separator|>"
)  # fmt: skip


class Llama4ForConditionalGeneration(transformers.Llama4ForConditionalGeneration):
    """transformers' model, whose own `forward` fails in 5.24: it reads `image_outputs` where there are none."""

    def get_image_features(self, pixel_values: torch.Tensor, **kwargs: Any) -> Any:
        """With rows in place of tokens."""
        found = super().get_image_features(pixel_values, **kwargs)
        found.pooler_output = self.multi_modal_projector(found.last_hidden_state)
        return found

    def generate(self, input_ids: torch.Tensor, pixel_values: torch.Tensor, **options: Any) -> torch.Tensor:
        """What the language model makes of tokens and rows."""
        embeddings = self.get_input_embeddings()(input_ids)
        rows = self.get_image_features(pixel_values).pooler_output
        mask = self.get_placeholder_mask(input_ids, embeddings, rows)
        embeddings = embeddings.masked_scatter(mask, rows)
        found = self.language_model.generate(inputs_embeds=embeddings, **options)
        return torch.cat([input_ids, found], dim=1)


def config(vocab_size: int, ids: Mapping[str, int]) -> Any:
    """Chunks that end within images, a layer with experts and one without, and one without rotary embedding."""
    return Llama4Config(
        vision_config={
            **VISION, "intermediate_size": 256, "projector_input_dim": 48, "projector_output_dim": 48,
            "vision_output_dim": 48, "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
        },
        text_config={
            **{key: value for key, value in LLAMA.items() if key != "model_type"}, "head_dim": 16,
            "vocab_size": vocab_size, "attention_chunk_size": 16, "num_local_experts": 4, "intermediate_size_mlp": 40,
            "moe_layers": [1], "no_rope_layers": [1, 0],
        },
        image_token_id=ids["<|patch|>"],
    )  # fmt: skip


def processor(tokenizer: Any) -> PartsProcessor:
    size = {"height": 56, "width": 56}
    pixels = OwnPixels(image_processor_type="Llama4ImageProcessor", size=size, max_patches=4)
    made = PartsProcessor(Llama4Processor, pixels, tokenizer, TEXTS, patch_size=14, pixel_shuffle_ratio=0.5)
    made.whole.downsample_ratio = 4
    return made


CASES = {
    "llama 4": SeeingCase(
        Llama4ForConditionalGeneration, config, processor, TOKENS, "<|image|>",
        sizes=((56, 56), (60, 130), (130, 111)), inputs=only_pixels,
    )
}  # fmt: skip
