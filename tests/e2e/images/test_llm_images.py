"""Images for `LLM`: prompts and answers equal those of transformers' processor and model."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxllm import LLM, SamplingParams
from jaxllm.errors import ConfigError, RequestError
from tests.e2e.images.conftest import Reference
from tests.e2e.images.pictures import data_url, picture

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
PROMPT = "Look: <image> and tell what it is."


OPTIONS: dict[str, Any] = {
    "max_model_len": 256, "max_num_seqs": 4, "max_num_batched_tokens": 8, "optimization_level": 0,
    "enforce_eager": True,
}  # fmt: skip
"""Nothing is compiled that a test does not need."""


@pytest.fixture(scope="module")
def llm(reference: Reference) -> Iterator[LLM]:
    with LLM(str(reference.folder), **OPTIONS) as made:
        yield made


def ask(llm: LLM, prompt: Any) -> tuple[list[int], list[int]]:
    (output,) = llm.generate([prompt], GREEDY, use_tqdm=False)
    assert output.prompt_token_ids is not None
    return list(output.prompt_token_ids), list(output.outputs[0].token_ids)


@pytest.mark.parametrize("size", [(80, 120), (50, 50), (200, 60), (56, 112), (1, 30)])
def test_a_prompt_with_an_image(llm: LLM, reference: Reference, size: tuple[int, int]) -> None:
    image = picture(1, *size)
    assert ask(llm, {"prompt": PROMPT, "multi_modal_data": {"image": image}}) == reference.answer(PROMPT, [image])


def test_several_images(llm: LLM, reference: Reference) -> None:
    text, images = "<image> or <image>?", [picture(2), picture(3, 60, 60)]
    assert ask(llm, {"prompt": text, "multi_modal_data": {"image": images}}) == reference.answer(text, images)


def test_an_array_and_token_ids(llm: LLM, reference: Reference) -> None:
    image = picture(4)
    wanted = reference.answer(PROMPT, [image])
    ids = reference.processor.tokenizer(PROMPT)["input_ids"]
    prompt = {"prompt_token_ids": ids, "multi_modal_data": {"image": np.asarray(image)}}
    assert ask(llm, prompt) == wanted
    # The tokens that stand for the image may also be there already.
    prompt["prompt_token_ids"] = wanted[0]
    assert ask(llm, prompt) == wanted


SILENCE = np.zeros((80, 3000), np.float32)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ({"prompt": "no place"}, r"the prompt has 0 places for images \('<image>'\), but 1 images were given"),
        ({"prompt": "<image><image>"}, r"has 2 places for images"),
        ({"prompt": "<image>", "multi_modal_data": {"image": "cat.png"}}, "expected an image of Pillow"),
        ({"prompt": "<image>", "multi_modal_data": {"image": np.zeros((2, 2, 4), np.uint8)}}, r"shape \[2, 2, 4\]"),
        ({"prompt": "<image>", "multi_modal_data": {"smell": b""}}, "expected {'image'.* or {'audio'"),
        ({"prompt": "<image>", "multi_modal_data": {"video": np.zeros((2, 8, 8, 3), np.uint8)}}, "takes no videos"),
        ({"prompt": "<image>", "multi_modal_data": {"audio": b""}}, "'audio' must be log-mel features"),
        ({"prompt": "<image>", "multi_modal_data": {"audio": SILENCE}}, "this model takes no sound"),
    ],
)
def test_wrong_prompts(llm: LLM, prompt: dict[str, Any], message: str) -> None:
    given = {"multi_modal_data": {"image": picture(5)}, **prompt}
    with pytest.raises(RequestError, match=message):
        llm.generate([given], GREEDY, use_tqdm=False)


def test_a_model_without_a_tower() -> None:
    with LLM("demo", **{**OPTIONS, "max_model_len": 64}) as llm:  # noqa: SIM117
        with pytest.raises(RequestError, match="this model accepts text only"):
            llm.generate([{"prompt": "a", "multi_modal_data": {"image": picture(0)}}], GREEDY, use_tqdm=False)


QUESTION = "What is this? <image>?"
"""Its marker is text of a user, and stands for nothing."""


@pytest.mark.parametrize("kind", ["image_url", "url text", "image_pil", "image"])
def test_a_conversation(llm: LLM, reference: Reference, kind: str) -> None:
    image = picture(6)
    parts: dict[str, dict[str, Any]] = {
        "image_url": {"type": "image_url", "image_url": {"url": data_url(image)}},
        "url text": {"type": "image_url", "image_url": data_url(image)},
        "image_pil": {"type": "image_pil", "image_pil": image},
        "image": {"type": "image", "image": image},
    }
    messages = [{"role": "user", "content": [parts[kind], {"type": "text", "text": "What is this?"}]}]
    (output,) = llm.chat(messages, GREEDY, use_tqdm=False)
    text = reference.rendered("What is this?")
    wanted = reference.answer(text, [image])
    assert (list(output.prompt_token_ids or ()), list(output.outputs[0].token_ids)) == wanted


def test_a_marker_in_the_text_of_a_user(llm: LLM) -> None:
    image = {"type": "image", "image": picture(7)}
    messages = [{"role": "user", "content": [image, {"type": "text", "text": QUESTION}]}]
    (output,) = llm.chat(messages, GREEDY, use_tqdm=False)
    token = llm.get_tokenizer().convert_tokens_to_ids("<image>")
    # Two by one tiles of 56 pixels, and the whole image: four rows each, and no more.
    assert list(output.prompt_token_ids or ()).count(token) == 5 * 4


def test_how_images_are_processed(llm: LLM) -> None:
    """For a call, for a prompt, and for a conversation: without tiles, an image has four rows."""
    whole, image, token = (
        {"do_image_splitting": False},
        picture(8),
        llm.get_tokenizer().convert_tokens_to_ids("<image>"),
    )
    prompt: Any = {"prompt": PROMPT, "multi_modal_data": {"image": image}}
    messages = [{"role": "user", "content": [{"type": "image", "image": image}]}]
    linked = [{"role": "user", "content": [{"type": "image_url", "image_url": data_url(image)}]}]
    outputs = [
        *llm.generate([prompt], GREEDY, use_tqdm=False, mm_processor_kwargs=whole),
        *llm.generate([{**prompt, "mm_processor_kwargs": whole}], GREEDY, use_tqdm=False),
        *llm.chat(messages, GREEDY, use_tqdm=False, mm_processor_kwargs=whole),
        *llm.chat(linked, GREEDY, use_tqdm=False, mm_processor_kwargs=whole),
    ]
    assert [list(each.prompt_token_ids or ()).count(token) for each in outputs] == [4] * 4
    for wrong in ({"image_mean": [0, 0, 0]}, "none"):
        with pytest.raises(RequestError, match="mm_processor_kwargs: "):
            llm.generate([{**prompt, "mm_processor_kwargs": wrong}], GREEDY, use_tqdm=False)


def test_where_images_of_conversations_come_from(llm: LLM, reference: Reference, tmp_path: Path) -> None:
    picture(9).save(tmp_path / "cat.png")
    part = {"type": "image_url", "image_url": {"url": (tmp_path / "cat.png").as_uri()}}
    messages = [{"role": "user", "content": [part]}]
    with pytest.raises(RequestError, match="file:// URLs are not allowed"):
        llm.chat(messages, GREEDY, use_tqdm=False)
    with LLM(
        str(reference.folder),
        **OPTIONS,
        allowed_local_media_path=str(tmp_path),
        mm_processor_kwargs={"do_image_splitting": False},
        limit_mm_per_prompt={"image": 1, "video": 0},
    ) as other:
        (output,) = other.chat(messages, GREEDY, use_tqdm=False)
        token = other.get_tokenizer().convert_tokens_to_ids("<image>")
        assert list(output.prompt_token_ids or ()).count(token) == 4
        media: Any = other.llm_engine.chat_media
        cache = media._images.cache
        other.chat(messages, GREEDY, use_tqdm=False)
        assert (cache.hits, len(cache)) == (1, 1)
        other.reset_mm_cache()
        other.chat(messages, GREEDY, use_tqdm=False)
        assert (cache.hits, len(cache)) == (1, 1), "decoded again"
        two = {"prompt": "<image><image>", "multi_modal_data": {"image": [picture(1), picture(2)]}}
        with pytest.raises(RequestError, match=r"2 images: a prompt may have at most 1 \(max_images_per_prompt\)"):
            other.generate([two], GREEDY, use_tqdm=False)
    with pytest.raises(ConfigError, match="max_image_bytes=0"):
        LLM(str(reference.folder), **OPTIONS, max_image_bytes=0)
