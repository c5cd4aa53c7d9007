"""MiniCPM-V 4.6: slices of an image, whose tokens are merged within the tower, and Qwen3.5."""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import MiniCPMV4_6Config, MiniCPMV4_6ForConditionalGeneration, MiniCPMV4_6Processor
from transformers.models.minicpmv4_6.image_processing_pil_minicpmv4_6 import MiniCPMV4_6ImageProcessorPil

from tests.e2e.images.families.case import LLAMA, VISION, PartsProcessor, SeeingCase
from tests.e2e.images.qwen import DELTA

TOKENS = {
    "image_token": "<|image_pad|>", "image_start_token": "<image>", "image_end_token": "</image>",
    "slice_start_token": "<slice>", "slice_end_token": "</slice>", "image_id_start_token": "<image_id>",
    "image_id_end_token": "</image_id>",
}  # fmt: skip
SIDE = 112


class Numbered(PartsProcessor):
    """With the number of each image before it, which the whole processor writes when it is called."""

    def __call__(self, text: str, images: list[Any], return_tensors: str) -> dict[str, Any]:
        """What the whole processor would make of a prompt."""
        found = self.images(images, return_tensors=return_tensors)
        first, *others = text.split(TOKENS["image_token"])
        written = [
            self.whole.replace_image_token(found, number, image_token_divisor=16) for number in range(len(others))
        ]
        written = self.whole._prepend_local_ids([text], written, TOKENS["image_token"])
        joined = first + "".join(new + after for new, after in zip(written, others, strict=True))
        sizes = {"pixel_values": found["pixel_values"], "target_sizes": torch.as_tensor(found["target_sizes"])}
        return {**sizes, **self.tokenizer(joined, return_tensors=return_tensors)}


def config(vocab_size: int, ids: Mapping[str, int]) -> Any:
    """Learned positions of 5 patches each way, and tokens that are merged after the first of three layers."""
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]}
    return MiniCPMV4_6Config(
        vision_config={**VISION, "image_size": 70},
        text_config={
            **{key: value for key, value in LLAMA.items() if key != "model_type"}, **DELTA,
            "model_type": "qwen3_5_text", "num_hidden_layers": 3, "vocab_size": vocab_size, "rope_parameters": rope,
        },
        insert_layer_id=0, image_token_id=ids["<|image_pad|>"], tie_word_embeddings=False,
    )  # fmt: skip


def processor(tokenizer: Any) -> Numbered:
    tokenizer.init_kwargs.update(TOKENS)
    images = MiniCPMV4_6ImageProcessorPil(scale_resolution=SIDE, max_slice_nums=4)
    return Numbered(MiniCPMV4_6Processor, images, tokenizer, TOKENS, slice_mode=True)


CASES = {
    "minicpm-v": SeeingCase(
        MiniCPMV4_6ForConditionalGeneration, config, processor, tuple(TOKENS.values()), TOKENS["image_token"],
        sizes=((56, 56), (120, 180), (230, 130)),
    )
}  # fmt: skip
