"""Phi-4 multimodal: crops that lack padding, of odd numbers of patches, and the whole image as floats."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from transformers import Phi4MultimodalConfig, Phi4MultimodalProcessor

from jaxllm.serving.media.image_processors.arithmetic import normalised
from jaxllm.serving.media.image_processors.phi4_multimodal import Phi4Multimodal
from tests.e2e.images.families.case import LLAMA, VISION, OwnPixels, PartsProcessor, SeeingCase

SIDE, PATCH = 56, 14
TOKENS = {"image_token": "<|image|>", "audio_token": "<|audio|>"}
SIZE = {"height": SIDE, "width": SIDE}


class Phi4MultimodalForCausalLM(transformers.Phi4MultimodalForCausalLM):
    """transformers' model, with rows in place of tokens alone.

    Its vision model attends in both directions only where a crop of the batch has padding: a flag is wrong in 5.24.
    That of Microsoft's code always does.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        for layer in self.model.embed_tokens_extend.image_embed.img_processor.encoder.layers:
            layer.self_attn.is_causal = False

    def get_image_features(self, **given: Any) -> Any:
        """Rows of the one image."""
        embed, token = self.model.embed_tokens_extend.image_embed, self.config.vision_config.image_token_id
        count = given.pop("num_img_tokens")[0]
        ids = torch.full((1, count), token)
        rows = embed(ids, torch.zeros(1, count, self.config.hidden_size), **given)
        return SimpleNamespace(pooler_output=[rows[0]])

    def generate(self, num_img_tokens: Any = None, **given: Any) -> Any:
        """Without what only the prompt needs."""
        return super().generate(**given)


class Pixels(OwnPixels):
    """All crops of an image, with their masks, as many for each image."""

    def __call__(self, images: list[Image.Image], return_tensors: str) -> dict[str, Any]:
        processor = self.processor
        assert isinstance(processor, Phi4Multimodal)
        crops, masks, sizes, counts = [], [], [], []
        for image in images:
            canvas, mask = canvas_of(processor, np.asarray(image))
            numbers = torch.from_numpy(normalised(canvas, processor.normalisation).transpose(2, 0, 1).copy())
            whole = torch.nn.functional.interpolate(numbers[None], (SIDE, SIDE), mode="bicubic", antialias=False)
            rows, columns = canvas.shape[0] // SIDE, canvas.shape[1] // SIDE
            cut = numbers.reshape(3, rows, SIDE, columns, SIDE).permute(1, 3, 0, 2, 4).reshape(-1, 3, SIDE, SIDE)
            side = SIDE // PATCH
            cut_mask = mask.reshape(rows, side, columns, side).transpose(1, 2).reshape(-1, side, side)
            crops.append(torch.cat([whole, cut]))
            masks.append(torch.cat([torch.ones(1, side, side), cut_mask]))
            sizes.append(canvas.shape[:2])
            seen = mask[::2, ::2]
            counts.append(int(seen.sum() + seen[:, 0].sum()) + 1 + (side // 2) * (side // 2 + 1))
        most = max(len(each) for each in crops)
        fill = torch.nn.functional.pad
        return {
            "image_pixel_values": torch.stack([fill(each, (0, 0) * 3 + (0, most - len(each))) for each in crops]),
            "image_attention_mask": torch.stack(
                [fill(each, (0, 0) * 2 + (0, most - len(each)), value=1.0) for each in masks]
            ),
            "image_sizes": torch.tensor(sizes),
            "num_img_tokens": counts,
        }


def canvas_of(processor: Phi4Multimodal, image: np.ndarray) -> tuple[np.ndarray, torch.Tensor]:
    """The padded image uint8 [height, width, 3], and which of its patches are not padding."""
    found = processor.process(image)
    rows = [
        np.hstack(found.crops[first : first + found.columns]) for first in range(1, len(found.crops), found.columns)
    ]
    seen = np.vstack(rows)
    height, width = found.rows * SIDE, found.columns * SIDE
    mask = torch.zeros(height // PATCH, width // PATCH)
    mask[: seen.shape[0] // PATCH, : seen.shape[1] // PATCH] = 1
    padding = ((0, height - seen.shape[0]), (0, width - seen.shape[1]), (0, 0))
    return np.pad(seen, padding, constant_values=255), mask


def config(vocab_size: int, ids: Mapping[str, int]) -> Any:
    return Phi4MultimodalConfig(
        **{key: value for key, value in LLAMA.items() if key != "model_type"}, vocab_size=vocab_size,
        original_max_position_embeddings=512,
        vision_config={**VISION, "crop_size": SIDE, "image_token_id": ids["<|image|>"]},
        audio_config={
            "hidden_size": 16, "intermediate_size": 24, "num_blocks": 2, "num_attention_heads": 2,
            "ext_pw_out_channel": 16, "depthwise_separable_out_channel": 16, "nemo_conv_channels": 8,
            "audio_token_id": ids["<|audio|>"],
        },
    )  # fmt: skip


def processor(tokenizer: Any) -> PartsProcessor:
    tokenizer.init_kwargs.update(TOKENS)
    pixels = Pixels(image_processor_type="Phi4MultimodalImageProcessor", size=SIZE, dynamic_hd=6, patch_size=PATCH)
    return PartsProcessor(Phi4MultimodalProcessor, pixels, tokenizer, TOKENS)


CASES = {
    "phi-4 multimodal": SeeingCase(
        Phi4MultimodalForCausalLM, config, processor, tuple(TOKENS.values()), "<|image|>",
        sizes=((56, 56), (70, 90), (100, 60), (200, 60)),
    )
}  # fmt: skip
