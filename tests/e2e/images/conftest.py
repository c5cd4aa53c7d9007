"""A small model that sees images, for all tests of this folder, and transformers' answers with it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from transformers import Idefics3ForConditionalGeneration

from tests.e2e.images.seeing import save_whole_model


class Reference:
    """transformers' processor and model, which are in `folder`."""

    def __init__(self, processor: Any, folder: Path) -> None:
        self.processor, self.folder = processor, folder
        self.model = Idefics3ForConditionalGeneration.from_pretrained(folder).eval()

    def answer(self, text: str, images: list[Image.Image]) -> tuple[list[int], list[int]]:
        """Token ids of the prompt, and of the answer."""
        inputs = self.processor(text=text, images=[images] if images else None, return_tensors="pt")
        inputs.pop("pixel_attention_mask", None)
        with torch.no_grad():
            found = self.model.generate(**inputs, max_new_tokens=8, do_sample=False, eos_token_id=None)[0].tolist()
        length = inputs["input_ids"].shape[1]
        return found[:length], found[length:]

    def num_rows(self, image: Image.Image) -> int:
        """Rows that an image becomes."""
        (prompt,) = self.processor(text="<image>", images=[[image]], return_tensors="np")["input_ids"]
        return int((prompt == self.processor.image_token_id).sum())

    def rendered(self, question: str) -> str:
        """The prompt of a conversation: an image, and a question about it."""
        messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question}]}]
        text: str = self.processor.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return text


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory, demo_folder: Path) -> Reference:
    folder = tmp_path_factory.mktemp("seeing")
    return Reference(save_whole_model(folder, demo_folder), folder)
