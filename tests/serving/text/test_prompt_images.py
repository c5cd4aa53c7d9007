"""Prompts that name their images, by numbers as Phi-3-Vision's do, or without as InternVL's."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from jaxllm.config.engine_info import ImageInfo
from jaxllm.errors import RequestError
from jaxllm.serving.media.checkpoint import ImageModel
from jaxllm.serving.media.prompt_forms import NamedImages
from jaxllm.serving.text.chat import render_chat
from jaxllm.serving.text.control_tokens import ChatPrompt
from jaxllm.serving.text.messages import IMAGE
from jaxllm.serving.text.prompt_images import PromptImages
from jaxllm.serving.text.prompts import ParsedPrompt
from jaxllm.serving.text.tokenizer import Tokenizer
from tests.e2e.images.families.phi3_vision import PATCH, SIDE, TOKEN, Processor
from tests.serving.media.image_processors.oracles import drawn_image

SIZES = [(56, 56), (70, 150), (120, 50)]
TEMPLATE = "{% for message in messages %}{{ '<|' + message['role'] + '|>\n' + message['content'] + '\n' }}{% endfor %}"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory, demo_folder: Path) -> PromptImages:
    folder = tmp_path_factory.mktemp("phi")
    tokenizer = AutoTokenizer.from_pretrained(demo_folder)
    tokenizer.add_special_tokens({"additional_special_tokens": [TOKEN]})
    Processor(tokenizer).save_pretrained(folder)
    token_id = tokenizer.convert_tokens_to_ids(TOKEN)
    patches = (SIDE // PATCH) ** 2
    info = ImageInfo(
        patch_size=PATCH, merge=2, token_id=token_id, most_patches=patches, most_rows=512, side=SIDE // PATCH,
        first_rows=2,
    )  # fmt: skip
    model = ImageModel.read(folder)
    return PromptImages(folder, model, model.placeholder(), info, 16, Tokenizer.load(folder), None)


def placed(images: PromptImages, text: str, count: int) -> tuple[list[int], ParsedPrompt]:
    """Token ids of a prompt with the first few images."""
    prompt = ParsedPrompt(text, None, None, images=[drawn_image(*size) for size in SIZES[:count]])
    images.place(prompt)
    assert prompt.has_special_tokens
    assert prompt.text is not None
    (ids,) = images.tokenizer.encode([prompt.text], add_special_tokens=False)
    return ids, prompt


def in_pieces(images: PromptImages, texts: list[str], numbers: list[int]) -> list[int]:
    """The same as the published code encodes it: each text around images alone."""
    pieces: list[list[int]] = images.tokenizer.encode(texts)
    found = pieces[0]
    for number, piece in zip(numbers, pieces[1:], strict=True):
        found = [*found, *[images.info.token_id] * images.prepare(drawn_image(*SIZES[number])).num_rows, *piece]
    return found


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("Look: <|image_1|>\n and tell.", 1),
        ("<|image_1|>", 1),
        ("<|image_2|> or<|image_1|><|image_2|>?", 2),
        ("<|image_1|>\n<|image_2|>\n<|image_3|>\nWhich?", 3),
    ],
)
def test_images_by_their_numbers(images: PromptImages, text: str, count: int) -> None:
    numbers = [int(number) - 1 for number in re.findall(r"\d+", text)]
    ids, prompt = placed(images, text, count)
    assert ids == in_pieces(images, re.split(r"<\|image_\d\|>", text), numbers)
    digests = [images.prepare(drawn_image(*SIZES[number])).items[0].digest for number in numbers]
    assert [item.digest for item in prompt.items] == digests


@pytest.mark.parametrize(
    ("text", "count", "message"),
    [
        ("<|image_1|> and <|image_3|>", 2, "counted from 1, and none may be left out"),
        ("<|image_0|>", 1, "counted from 1"),
        ("<|image_1|>", 2, "names 1 images, but 2 images were given"),
        ("Nothing to see", 1, "0 places for images"),
    ],
)
def test_numbers_that_do_not_fit(images: PromptImages, text: str, count: int, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        placed(images, text, count)


def test_each_name_counts_as_an_image(images: PromptImages) -> None:
    """One image that is named without end would be written out before anything counts tokens."""
    limited = replace(images, most={IMAGE: 2})
    assert placed(limited, "<|image_1|> and <|image_1|>", 1)[0]
    with pytest.raises(RequestError, match=r"100000 images: a prompt may have at most 2 \(max_images_per_prompt\)"):
        placed(limited, "<|image_1|>" * 100_000, 1)


def test_images_without_numbers() -> None:
    form = NamedImages(marker="<I>", feature="<I>", count=lambda image: 1, names=re.compile("<image>"))
    assert form.ordered("One: <image>, two: <image>") == ("One: <I>, two: <I>", (0, 1))
    assert form.ordered("<I> and <image>") == ("<I> and <image>", ())
    assert form.ordered("None") == ("None", ())


@pytest.mark.parametrize("said", ["Which one?", f"Not {TOKEN} nor <|image_1|>?"])
def test_conversations(images: PromptImages, said: str) -> None:
    """Templates take text alone: images come before it. What a message says of them is text."""
    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": said}, {"type": "image"}]}]
    text = render_chat(images.tokenizer, messages, chat_template=TEMPLATE, media={IMAGE}, written=images.written)
    ids, _ = placed(images, text, 2)
    assert isinstance(text, ChatPrompt) is (TOKEN in said)
    shown = said.replace(TOKEN, "##")
    wanted = in_pieces(images, ["<|user|>\n", "\n", f"\n{shown}\n"], [0, 1])
    (told,) = images.tokenizer.encode(["<|user|>\n"])
    assert ids[: len(told)] == told
    if shown == said:
        assert ids == wanted
    rows = sum(images.prepare(drawn_image(*size)).num_rows for size in SIZES[:2])
    assert np.count_nonzero(np.asarray(ids) == images.info.token_id) == rows
