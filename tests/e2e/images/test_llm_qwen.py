"""`LLM` and Qwen's models that see: prompts and answers are those of transformers' image processor and model."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from transformers import AutoTokenizer
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from jaxllm import LLM, SamplingParams
from jaxllm.errors import ConfigError, RequestError
from tests.e2e.images.pictures import data_url, picture
from tests.e2e.images.qwen import FAMILIES, Seeing, make_model
from tests.e2e.images.qwen_prompts import MERGE, PATCH

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
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

    def answer(self, text: str, images: list[Image.Image]) -> tuple[list[int], list[int]]:
        """Token ids of the prompt, and of the answer."""
        found: dict[str, Any] = dict(self.images(images, return_tensors="pt")) if images else {}
        for grid in found.get("image_grid_thw", ()):
            text = text.replace("<|image_pad|>", "<|seen|>" * (int(grid.prod()) // MERGE**2), 1)
        ids = self.tokenizer(text.replace("<|seen|>", "<|image_pad|>"), return_tensors="pt")["input_ids"]
        if images:
            found["mm_token_type_ids"] = (ids == self.image_token).int()
        self.model.model.rope_deltas = None
        with torch.no_grad():
            told = self.model.generate(
                input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False,
                eos_token_id=None, **found,
            )  # fmt: skip
        return ids[0].tolist(), told[0, ids.shape[1] :].tolist()


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, demo_folder: Path) -> Reference:
    return Reference(FAMILIES["qwen3_vl"], tmp_path_factory.mktemp("seeing"), demo_folder)


@pytest.fixture(scope="module")
def llm(reference: Reference) -> Iterator[LLM]:
    options: dict[str, Any] = {"max_model_len": 256, "max_num_seqs": 4, "optimization_level": 0}
    with LLM(str(reference.folder), **options, enforce_eager=True, max_image_patches=100) as made:
        yield made


def ask(llm: LLM, text: str, images: list[Image.Image]) -> tuple[list[int], list[int]]:
    prompt = {"prompt": text, "multi_modal_data": {"image": images}}
    (output,) = llm.generate([prompt], GREEDY, use_tqdm=False)
    return list(output.prompt_token_ids or ()), list(output.outputs[0].token_ids)


def test_prompts_with_images_of_any_size(llm: LLM, reference: Reference) -> None:
    text = f"Look: {MARKER} and tell what it is."
    for size in [(30, 40), (8, 8), (3, 90), (40, 15)]:
        image = picture(1, *size)
        assert ask(llm, text, [image]) == reference.answer(text, [image]), size
    images = [picture(2, 20, 30), picture(3, 33, 18)]
    assert ask(llm, f"{MARKER} or {MARKER}?", images) == reference.answer(f"{MARKER} or {MARKER}?", images)


def test_a_conversation(llm: LLM, reference: Reference) -> None:
    image = picture(6, 30, 30)
    parts = [
        {"type": "image_url", "image_url": {"url": data_url(image)}},
        {"type": "text", "text": "What is <|image_pad|>?"},
    ]
    (output,) = llm.chat([{"role": "user", "content": parts}], GREEDY, use_tqdm=False)
    ids = list(output.prompt_token_ids or ())
    # The marker in a user's text stands for nothing.
    assert ids.count(reference.image_token) == (32 // SIDE) ** 2


def test_an_image_that_is_too_large(llm: LLM) -> None:
    message = r"500 x 400 pixels is too large: it would have 120 patches, .* at most 100 \(max_image_patches\)"
    image = picture(7, 400, 500)
    with pytest.raises(RequestError, match=message):
        ask(llm, MARKER, [image])
    part = {"type": "image_url", "image_url": {"url": data_url(image)}}
    with pytest.raises(RequestError, match=message):
        llm.chat([{"role": "user", "content": [part]}], GREEDY, use_tqdm=False)


@pytest.mark.parametrize(("patches", "reason"), [(3, "must be from 4"), (2000, "to 1024, as many as media_pool")])
def test_sizes_that_do_not_fit(reference: Reference, patches: int, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        LLM(str(reference.folder), max_model_len=256, max_image_patches=patches)
