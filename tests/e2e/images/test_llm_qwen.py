"""`LLM` and Qwen's models that see: prompts and answers are those of transformers' image processor and model."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from jaxllm import LLM, SamplingParams
from jaxllm.errors import ConfigError, RequestError
from tests.e2e.images.pictures import data_url, picture
from tests.e2e.images.qwen import FAMILIES
from tests.e2e.images.qwen_reference import MARKER, SIDE, Reference

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


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
