"""Kimi-VL, as published: transformers has Kimi-K2.5 alone, whose tower computes the same of an image."""

import json
from functools import partial
from pathlib import Path
from typing import Any

from safetensors.numpy import load, save_file
from transformers import Kimi_K25ForConditionalGeneration, Kimi_K25Processor

from tests.e2e.images.families.case import PartsProcessor, SeeingCase
from tests.e2e.images.families.kimi_k25 import OwnPatches, config

NAMES = {
    "language_model.model.blocks.": "language_model.model.layers.",
    "vision_tower.encoder.patch_embed.": "vision_tower.patch_embed.",
    "mm_projector.proj.0.": "multi_modal_projector.linear_1.",
    "mm_projector.proj.2.": "multi_modal_projector.linear_2.",
    "model.mm_projector.": "multi_modal_projector.",
}
"""Beginnings of names in checkpoints of Kimi-VL, by those that transformers writes of Kimi-K2.5."""
VISION = {
    "model_type": "moonvit", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "patch_size": 14, "init_pos_emb_height": 5, "init_pos_emb_width": 5,
    "merge_kernel_size": [2, 2], "torch_dtype": "float32",
}  # fmt: skip
CODE = {"AutoProcessor": "processing_kimi_vl.KimiVLProcessor", "AutoImageProcessor": "m.KimiVLImageProcessor"}
IMAGES = {
    "auto_map": CODE, "in_token_limit": 36, "patch_size": 14, "num_pooled_tokens": 1024, "pad_input": True,
    "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
}  # fmt: skip


def model(config: Any) -> Kimi_K25ForConditionalGeneration:
    """A model that is written as Kimi-VL."""
    made = Kimi_K25ForConditionalGeneration(config)
    made.save_pretrained = partial(save, made)
    return made


def save(made: Kimi_K25ForConditionalGeneration, folder: Path) -> None:
    """Write the files of a checkpoint."""
    Kimi_K25ForConditionalGeneration.save_pretrained(made, folder)
    given = json.loads((folder / "config.json").read_text())
    found = {
        "architectures": ["KimiVLForConditionalGeneration"], "model_type": "kimi_vl", "vision_config": VISION,
        "text_config": given["text_config"], "media_placeholder_token_id": given["image_token_id"],
        "ignore_index": -100, "torch_dtype": "float32", "vocab_size": given["text_config"]["vocab_size"],
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(found))
    path = folder / "model.safetensors"
    tensors = load(path.read_bytes())
    save_file({renamed(name): value for name, value in tensors.items()}, path)


def renamed(name: str) -> str:
    """A tensor's name in a checkpoint of Kimi-VL."""
    old = next((old for old in NAMES if name.startswith(old)), "")
    return NAMES.get(old, "") + name.removeprefix(old)


class Processor(PartsProcessor):
    """With the files that Kimi-VL has: names of classes are in `auto_map` alone."""

    def save_pretrained(self, folder: Path) -> None:
        """Write them."""
        super().save_pretrained(folder)
        (folder / "processor_config.json").unlink()


def processor(tokenizer: Any) -> Processor:
    return Processor(Kimi_K25Processor, OwnPatches(**IMAGES), tokenizer, {"image_token": "<|media_pad|>"})


CASES = {
    "kimi-vl": SeeingCase(
        model, config, processor, ("<|media_pad|>",), "<|media_pad|>", sizes=((56, 56), (26, 110), (130, 111)),
    )
}  # fmt: skip
