"""The model that sees and ships: it says what is in a picture, over `LLM` and over HTTP, offline."""

import base64
import io
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from PIL import Image
from transformers import AutoTokenizer, Idefics3ForConditionalGeneration, Idefics3Processor
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

from jaxllm.models.checkpoint.find_model import find_model
from tests.conftest import ROOT
from tests.serving.server_process import ServerProcess, running

EXAMPLE = ROOT / "docs" / "examples" / "vision_language.py"
WANTED = "A red circle and a blue square on a white background."


@pytest.fixture(scope="module")
def drawing() -> Image.Image:
    drawn: Image.Image = runpy.run_path(str(EXAMPLE))["draw"]()
    return drawn


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    quick = ("--optimization-level", "0", "--enforce-eager", "--max-num-batched-tokens", "8")
    log = tmp_path_factory.mktemp("server") / "log"
    with running(log, "demo-vision", "--host", "127.0.0.1", "--port", "0", *quick) as made:
        yield made


def test_the_example_describes_its_drawing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["vision_language.py"])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    first, second = capsys.readouterr().out.strip().splitlines()
    assert first == f"What is in this picture? {WANTED}"
    assert second == "What color is the square? The square is blue."


@pytest.mark.exhaustive
def test_clients_get_the_same_streamed(server: ServerProcess, drawing: Image.Image) -> None:
    content = io.BytesIO()
    drawing.save(content, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is in this picture?"}]
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    messages: Any = [{"role": "user", "content": parts}]
    stream = client.chat.completions.create(model="demo-vision", messages=messages, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices) == WANTED


def test_transformers_says_the_same(drawing: Image.Image) -> None:
    folder = find_model("demo-vision")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    images = Idefics3ImageProcessorPil.from_pretrained(folder)
    processor = Idefics3Processor(images, tokenizer, image_seq_len=16, chat_template=_template(folder))
    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is in this picture?"}]}]
    text = processor.apply_chat_template(messages, add_generation_prompt=True)
    inputs = processor(text=text, images=[[drawing]], return_tensors="pt")
    model = Idefics3ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        found = model.generate(**inputs, max_new_tokens=40, do_sample=False)[0]
    answer = tokenizer.decode(found[inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    assert answer.strip() == WANTED


def _template(folder: Path) -> str:
    return (folder / "chat_template.jinja").read_text(encoding="utf-8")
