"""A small model that sees images, for all tests of this folder, and transformers' answers with it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from PIL import Image
from transformers import Idefics3ForConditionalGeneration

from tests.e2e.images.seeing import save_whole_model
from tests.serving.server_process import ServerProcess, running


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


@pytest.fixture(scope="session")
def server(reference: Reference, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    quick = ("--optimization-level", "0", "--enforce-eager", "--max-num-batched-tokens", "8")
    flags = ("--host", "127.0.0.1", "--port", "0", "--max-model-len", "256", *quick)
    log = tmp_path_factory.mktemp("server") / "log"
    with running(
        log, str(reference.folder), *flags, "--served-model-name", "seeing", "--max-images-per-prompt", "4"
    ) as made:
        yield made
        assert "Traceback" not in made.log, made.log


@pytest.fixture(scope="session")
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made
