"""Phi-3-Vision: transformers has no such model, but its language model and CLIP; the rest is written here.

As `image_embedding_phi3_v.py` of microsoft/Phi-3-vision-128k-instruct says it: four patches of a square side by side
become a row, a learned vector ends each line, another stands between the crops and the whole image.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image
from tokenizers.processors import TemplateProcessing
from torch import nn
from transformers import CLIPVisionConfig, CLIPVisionModel, Phi3Config, Phi3ForCausalLM

from tests.e2e.images.families.case import LLAMA, VISION, SeeingCase
from tests.serving.media.image_processors.phi3_vision import canvas_of, crops_of

SIDE, PATCH, MOST = 56, 14, 5
TOKEN = "<|image|>"


class Embedding(nn.Module):
    """Rows of images, with the names of the published checkpoints."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        size = config.vision_config["hidden_size"] * 4
        clip = CLIPVisionModel(CLIPVisionConfig(**config.vision_config))
        self.img_processor = nn.ModuleDict({"vision_model": clip})
        self.glb_GN = nn.Parameter(torch.zeros(1, 1, size))
        self.sub_GN = nn.Parameter(torch.zeros(1, 1, 1, size))
        self.img_projection = nn.Sequential(
            nn.Linear(size, config.hidden_size), nn.GELU(), nn.Linear(config.hidden_size, config.hidden_size)
        )

    def forward(self, crops: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        """Rows [n, D] of the whole image and its crops, [1 + rows * columns, 3, SIDE, SIDE]."""
        found = self.img_processor["vision_model"](crops, output_hidden_states=True).hidden_states[-2][:, 1:]
        half = SIDE // PATCH // 2
        squares = found.reshape(len(crops), half, 2, half, 2, -1).transpose(2, 3).reshape(len(crops), half, half, -1)
        whole, parts = squares[0], squares[1:].reshape(rows, columns, half, half, -1)
        lines = parts.transpose(1, 2).reshape(rows * half, columns * half, -1)
        ended = [
            torch.cat([each, self.sub_GN[0].expand(len(each), 1, -1)], dim=1).flatten(0, 1) for each in (lines, whole)
        ]
        return self.img_projection(torch.cat([ended[0], self.glb_GN[0], ended[1]]))


class Phi3VForCausalLM(Phi3ForCausalLM):
    """Phi-3 with rows of images in place of tokens."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model.vision_embed_tokens = Embedding(config)

    def get_image_features(self, pixel_values: list[torch.Tensor], image_sizes: list[tuple[int, int]]) -> Any:
        """Rows of each image."""
        embed = self.model.vision_embed_tokens
        return SimpleNamespace(
            pooler_output=[
                embed(crops, *(length // SIDE for length in size))
                for crops, size in zip(pixel_values, image_sizes, strict=True)
            ]
        )

    def generate(self, input_ids: torch.Tensor, pixel_values: Any, image_sizes: Any, **given: Any) -> torch.Tensor:
        """The prompt, and what follows."""
        rows = torch.cat(self.get_image_features(pixel_values, image_sizes).pooler_output)
        embeds = self.model.embed_tokens(input_ids)
        embeds[input_ids == self.config.image_token_id] = rows
        found = super().generate(inputs_embeds=embeds, attention_mask=torch.ones_like(input_ids), **given)
        return torch.cat([input_ids, found], dim=1)


class Processor:
    """The processor of the published code, with fewer crops, and smaller ones."""

    def __init__(self, tokenizer: Any) -> None:
        """The tokenizer will put a token before each text, as the published one does."""
        first = tokenizer.bos_token
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=f"{first} $A", special_tokens=[(first, tokenizer.bos_token_id)]
        )
        self.tokenizer = tokenizer

    def __call__(self, text: str, images: list[Image.Image], return_tensors: str) -> dict[str, Any]:
        """Texts around images are encoded one by one."""
        canvases = [canvas_of(np.asarray(image), SIDE, MOST) for image in images]
        texts = [self.tokenizer(each).input_ids for each in text.split(TOKEN)]
        token, half = self.tokenizer.convert_tokens_to_ids(TOKEN), SIDE // PATCH // 2
        ids = texts[0]
        for canvas, more in zip(canvases, texts[1:], strict=True):
            rows, columns = (length // SIDE for length in canvas.shape[:2])
            count = (rows * columns + 1) * half**2 + 1 + (rows + 1) * half
            ids = [*ids, *[token] * count, *more]
        return {
            "input_ids": torch.tensor([ids]),
            "pixel_values": [crops_of(canvas, SIDE) for canvas in canvases],
            "image_sizes": [canvas.shape[:2] for canvas in canvases],
        }

    def save_pretrained(self, folder: Path) -> None:
        """Write the files that published checkpoints have."""
        self.tokenizer.save_pretrained(folder)
        code = {each: f"processing_phi3_v.Phi3V{each.removeprefix('Auto')}" for each in ("AutoProcessor",)}
        fields = {
            "auto_map": {**code, "AutoImageProcessor": "image_processing_phi3_v.Phi3VImageProcessor"},
            "image_processor_type": "Phi3VImageProcessor", "processor_class": "Phi3VProcessor", "num_crops": MOST,
            "num_img_tokens": 144, "do_convert_rgb": True, "size": {"height": SIDE, "width": SIDE},
        }  # fmt: skip
        (folder / "preprocessor_config.json").write_text(json.dumps(fields))


def config(vocab_size: int, ids: Mapping[str, int]) -> Any:
    text = {key: value for key, value in LLAMA.items() if key != "model_type"}
    return Phi3Config(
        **text, vocab_size=vocab_size, original_max_position_embeddings=512, image_token_id=ids[TOKEN],
        vision_config={**VISION, "hidden_act": "quick_gelu"},
        embd_layer={
            "embedding_cls": "image", "hd_transform_order": "sub_glb", "projection_cls": "mlp",
            "use_hd_transform": True, "with_learnable_separator": True,
        },
        img_processor={
            "image_dim_out": 64, "model_name": "openai/clip-vit-large-patch14-336", "name": "clip_vision_model",
            "num_img_tokens": 144,
        },
    )  # fmt: skip


CASES = {
    "phi-3 vision": SeeingCase(
        Phi3VForCausalLM, config, Processor, (TOKEN,), TOKEN, sizes=((56, 56), (70, 90), (100, 60), (200, 60))
    )
}
