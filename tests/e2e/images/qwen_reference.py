"""A small Qwen that sees, with a tokenizer and an image processor, and what transformers makes of it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import AutoTokenizer
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from tests.e2e.images.qwen import Seeing, make_model
from tests.e2e.images.qwen_prompts import MERGE, PATCH

MARKER = "<|vision_start|><|image_pad|><|vision_end|>"
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}:{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% elif part['type'] == 'image' %}" + MARKER + "{% endif %}"
    "{% endfor %}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
SIDE, LONGEST = PATCH * MERGE, 48
MOST = LONGEST**2 // PATCH**2
"""Patches of the largest image that the image processor makes."""


class Reference:
    """A model in `folder`, whose images have at most as many pixels as a square of `LONGEST`, and transformers' own."""

    def __init__(self, family: Seeing, folder: Path, demo: Path) -> None:
        tokenizer = AutoTokenizer.from_pretrained(demo)
        names = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
        tokenizer.add_special_tokens({"additional_special_tokens": list(names)})
        tokenizer.chat_template = TEMPLATE
        tokenizer.save_pretrained(folder)
        ids = [tokenizer.convert_tokens_to_ids(name) for name in names]
        size = {"shortest_edge": SIDE**2, "longest_edge": LONGEST**2}
        self.images = Qwen2VLImageProcessorPil(patch_size=PATCH, merge_size=MERGE, size=size)
        self.images.save_pretrained(folder)
        file = folder / "preprocessor_config.json"
        fields = {**json.loads(file.read_text()), "processor_class": f"{family.name}Processor"}
        file.write_text(json.dumps(fields))
        self.model = make_model(family, tuple(ids), len(tokenizer))
        self.model.save_pretrained(folder)
        self.tokenizer, self.folder, self.image_token = tokenizer, folder, ids[2]

    def _inputs(self, text: str, images: list[Image.Image]) -> dict[str, Any]:
        """The arguments of the model for a text with a marker for each image."""
        found: dict[str, Any] = dict(self.images(images, return_tensors="pt")) if images else {}
        for grid in found.get("image_grid_thw", ()):
            text = text.replace("<|image_pad|>", "<|seen|>" * (int(grid.prod()) // MERGE**2), 1)
        ids = self.tokenizer(text.replace("<|seen|>", "<|image_pad|>"), return_tensors="pt")["input_ids"]
        if images:
            found["mm_token_type_ids"] = (ids == self.image_token).int()
        # It keeps how far the last prompt was ahead.
        self.model.model.rope_deltas = None
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **found}

    def num_rows(self, image: Image.Image) -> int:
        """Rows that an image becomes."""
        ids = self._inputs("<|image_pad|>", [image])["input_ids"][0].tolist()
        return int(ids.count(self.image_token))

    def answer(self, text: str, images: list[Image.Image]) -> tuple[list[int], list[int]]:
        """Token ids of the prompt, and of the answer."""
        inputs = self._inputs(text, images)
        with torch.no_grad():
            told = self.model.generate(**inputs, max_new_tokens=8, do_sample=False, eos_token_id=None)
        ids = inputs["input_ids"]
        return ids[0].tolist(), told[0, ids.shape[1] :].tolist()

    def states(self, text: str, images: list[Image.Image]) -> tuple[list[int], np.ndarray]:
        """Token ids of the prompt, and its hidden states, float32 [tokens, D]."""
        inputs = self._inputs(text, images)
        with torch.no_grad():
            found = self.model.model(**inputs).last_hidden_state[0].numpy()
        return inputs["input_ids"][0].tolist(), found

    def logits(self, text: str, images: list[Image.Image]) -> np.ndarray:
        """Those after the last token, float32 [V]."""
        with torch.no_grad():
            found: np.ndarray = self.model(**self._inputs(text, images)).logits[0, -1].numpy()
        return found
