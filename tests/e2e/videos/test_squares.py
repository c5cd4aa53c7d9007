"""Families that see each frame as a square: prompts and answers are those of transformers."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers.models.smolvlm import processing_smolvlm
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil
from transformers.video_utils import VideoMetadata

from jaxllm import LLM, SamplingParams
from jaxllm.serving.media.checkpoint import ImageModel
from jaxllm.serving.media.video.checkpoint import VideoModel
from jaxllm.serving.media.video.frames import VideoFrames, videos_of
from jaxllm.serving.media.video.smolvlm import in_words
from tests.e2e.images.families import internvl, llava_next
from tests.e2e.images.families.case import LLAMA, VISION, PartsProcessor, SeeingCase
from tests.e2e.images.pictures import picture
from tests.e2e.images.test_families import Saved

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
MEAN, STD = (
    np.array(each, np.float32) for each in ([0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711])
)


def with_videos(case: SeeingCase) -> SeeingCase:
    """The case with a token for videos, the last one."""
    return SeeingCase(
        case.model, case.config, case.processor, (*(each for each in case.tokens if each != "<video>"), "<video>")
    )


TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% elif part['type'] == 'image' %}{{ '<image>' }}{% endif %}"
    "{% endfor %}{% endfor %}"
)
SMOLVLM = ("<fake_token_around_image>", "<image>", "<global-img>")


def smolvlm(vocab_size: int, ids: Mapping[str, int]) -> Any:
    """SmolVLM's configuration."""
    return transformers.SmolVLMConfig(
        vision_config=VISION, text_config={**LLAMA, "vocab_size": vocab_size}, scale_factor=2,
        image_token_id=ids["<image>"], pad_token_id=0, tie_word_embeddings=False,
    )  # fmt: skip


def smolvlm_processor(tokenizer: Any) -> PartsProcessor:
    """Images of 56 pixels, which are 4 rows."""
    sizes = {"size": {"longest_edge": 56}, "max_image_size": {"longest_edge": 56}}
    names = dict(zip(("fake_image_token", "image_token", "global_image_token"), SMOLVLM, strict=True))
    return PartsProcessor(
        transformers.SmolVLMProcessor, SmolVLMImageProcessorPil(**sizes), tokenizer, names, image_seq_len=4
    )


CASES = {
    "smolvlm": SeeingCase(transformers.SmolVLMForConditionalGeneration, smolvlm, smolvlm_processor, SMOLVLM, "<image>"),
    "internvl": with_videos(internvl.CASES["internvl"]),
    "onevision": with_videos(llava_next.CASES["llava onevision"]),
    "next video": llava_next.CASES["llava next video"],
}
FEW = ("smolvlm", "internvl")
"""Those that CI has."""


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=[pytest.mark.exhaustive] * (name not in FEW)) for name in CASES]
)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, demo_folder: Path) -> Saved:
    found = Saved(CASES[request.param], tmp_path_factory.mktemp("video"), demo_folder)
    sizes: dict[str, Any] = {"size": {"height": 56, "width": 56}, "do_sample_frames": False, "num_frames": 8}
    if request.param == "next video":
        sizes = {"size": {"shortest_edge": 56}, "crop_size": {"height": 56, "width": 56}}
    if request.param == "smolvlm":
        sizes = {"video_sampling": {"fps": 1, "max_frames": 64, "video_size": {"longest_edge": 84}},
                 "max_image_size": {"longest_edge": 56}}  # fmt: skip
    (found.folder / "video_preprocessor_config.json").write_text(json.dumps(sizes))
    return found


def answer(saved: Saved, text: str, videos: list[VideoFrames]) -> tuple[list[int], list[int]]:
    """Token ids of the prompt, and of transformers' answer."""
    model = VideoModel.read(saved.folder, ImageModel.read(saved.folder))
    assert model is not None
    whole: Any = saved.processor.whole
    whole.video_token = "<video>"
    is_next = "LlavaNextVideo" in type(saved.model).__name__
    floats = []
    is_smolvlm = "SmolVLM" in type(saved.model).__name__
    mean, std = (np.float32(0.5), np.float32(0.5)) if is_smolvlm else (MEAN, STD)
    for video in videos:
        frames = np.stack(model.process(video, None).crops).astype(np.float32)
        floats.append(torch.from_numpy(((frames * np.float32(1 / 255) - mean) / std).transpose(0, 3, 1, 2)))
        shape = SimpleNamespace(shape=frames[None].shape if is_smolvlm else frames.shape)
        metadata = VideoMetadata(video.total, video.fps, duration=video.duration, frames_indices=list(video.indices))
        told = {
            "pixel_values_videos": [frames.transpose(0, 3, 1, 2) if is_next else shape],
            "pixel_values": shape,
            "video_metadata": [metadata],
        }
        written = whole.replace_video_token(told, 0)
        text = text.replace("<video>", written.replace("video", "VIDEO"), 1)
    ids = saved.processor.tokenizer(text.replace("VIDEO", "video"), return_tensors="pt")["input_ids"]
    is_internvl = "InternVL" in type(saved.model).__name__
    pixels = {"pixel_values": torch.cat(floats)} if is_internvl else {"pixel_values_videos": torch.stack(floats)}
    if is_smolvlm:
        pixels = {"pixel_values": torch.cat(floats)[None]}
    with torch.no_grad():
        found = saved.model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False, eos_token_id=None,
            pad_token_id=0, **pixels,
        )  # fmt: skip
    return ids[0].tolist(), found[0, ids.shape[1] :].tolist()


def test_answers(saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    # A package that transformers needs for this alone.
    monkeypatch.setattr(processing_smolvlm, "num2words", in_words)
    given = [
        np.stack([np.asarray(picture(number + 10 * seed, 40, 70)) for number in range(count)])
        for seed, count in ((1, 3), (2, 3), (3, 1))
    ]
    late = (given[0], {"fps": 2.0, "frames_indices": [0, 120, 7300], "total_num_frames": 7400, "duration": 3700.0})
    prompts: list[tuple[str, list[Any]]] = [("Look: <video> and tell what happens.", [each]) for each in given]
    prompts.append(("<video> or <video>?", given[:2]))
    prompts.append(("Late: <video>", [late]))
    options: dict[str, Any] = {"max_model_len": 256, "max_num_seqs": 4, "max_num_batched_tokens": 32}
    with LLM(str(saved.folder), optimization_level=0, enforce_eager=True, **options) as llm:
        asked = [{"prompt": text, "multi_modal_data": {"video": videos}} for text, videos in prompts]
        outputs = llm.generate(asked, GREEDY, use_tqdm=False)
        if "SmolVLM" in type(saved.model).__name__:
            # Its template has no place for videos; what a message says of them is text.
            said = "Not <video>, nor <global-img>: what happens?"
            parts = [{"type": "text", "text": said}, {"type": "video", "video": given[0]}]
            (told,) = llm.chat([{"role": "user", "content": parts}], GREEDY, chat_template=TEMPLATE, use_tqdm=False)
            wanted = llm.generate(
                [{"prompt": f"user: <video>{'#' * 8}", "multi_modal_data": {"video": given[0]}}], GREEDY, use_tqdm=False
            )[0]
            token = saved.processor.tokenizer.convert_tokens_to_ids("<image>")
            ids, expected = list(told.prompt_token_ids or ()), list(wanted.prompt_token_ids or ())
            end = len(expected) - expected[::-1].index(token)
            assert ids[:end] == expected[:end]
            assert saved.processor.tokenizer.decode(ids[end + 1 :]).strip() == said
    assert len({tuple(output.outputs[0].token_ids) for output in outputs}) >= len(prompts) - 1
    for (text, videos), output in zip(prompts, outputs, strict=True):
        found = list(output.prompt_token_ids or ()), list(output.outputs[0].token_ids)
        assert found == answer(saved, text, videos_of(videos)), text


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (1, "one"), (16, "sixteen"), (20, "twenty"), (42, "forty-two"), (100, "one hundred"),
        (121, "one hundred and twenty-one"), (768, "seven hundred and sixty-eight"),
        (1005, "one thousand and five"), (1234, "one thousand, two hundred and thirty-four"),
        (30000, "thirty thousand"),
    ],
)  # fmt: skip
def test_numbers_in_words(number: int, words: str) -> None:
    """As num2words writes them."""
    assert in_words(number) == words
