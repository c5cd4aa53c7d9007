"""GOT-OCR 2."""

from collections.abc import Mapping
from typing import Any

from transformers import GotOcr2Config, GotOcr2ForConditionalGeneration
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

from tests.e2e.images.families.case import LLAMA, PartsProcessor, SeeingCase
from tests.e2e.images.families.internvl import inputs
from tests.e2e.images.families.llava import NEWER


def config(vocab_size: int, ids: Mapping[str, int]) -> Any:
    """Windows of 7 reach beyond the edge of 16 patches."""
    return GotOcr2Config(
        vision_config={
            "hidden_size": 48, "output_channels": 20, "num_hidden_layers": 3, "num_attention_heads": 3,
            "image_size": 64, "patch_size": 4, "window_size": 7, "global_attn_indexes": [1], "mlp_dim": 56,
        },
        text_config={**LLAMA, "model_type": "qwen2", "vocab_size": vocab_size},
        image_token_id=ids["<imgpad>"],
        tie_word_embeddings=False,
    )  # fmt: skip


class Processor(PartsProcessor):
    """By hand: transformers' own writes questions, not prompts."""

    def __init__(self, tokenizer: Any) -> None:
        images = GotOcr2ImageProcessorPil(size={"height": 64, "width": 64}, crop_to_patches=True, max_patches=4)
        super().__init__("GotOcr2Processor", images, tokenizer, {"image": "<imgpad>"}, num_image_tokens=16)

    def replace_image_token(self, found: Mapping[str, Any], number: int) -> str:
        return "<imgpad>" * (16 * int(found["num_patches"][number]))


CASES = {
    "got-ocr 2": SeeingCase(
        GotOcr2ForConditionalGeneration, config, Processor, ("<imgpad>",), "<imgpad>",
        sizes=((64, 64), (70, 150), (150, 131)), inputs=inputs, renamed=(NEWER,),
    )
}  # fmt: skip
