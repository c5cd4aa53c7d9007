"""Every family that sees videos: prompts, rows and answers are those of transformers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxllm import LLM, SamplingParams
from jaxllm.errors import RequestError
from jaxllm.serving.media.video.frames import VideoFrames, videos_of
from tests.e2e.images.pictures import picture
from tests.e2e.videos.reference import Reference
from tests.thinned import thinned

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
FEW, OTHERS = ("qwen2_5_vl", "qwen3_vl", "glm4v"), ("qwen2_vl", "qwen3_5", "glm46v")
"""Each of those has its own times of frames; what the others do differently, tests of images compare."""


@pytest.fixture(scope="module", params=thinned(FEW, OTHERS))
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, demo_folder: Path) -> Reference:
    return Reference(request.param, tmp_path_factory.mktemp("video"), demo_folder)


@pytest.fixture(scope="module")
def llm(reference: Reference) -> Iterator[LLM]:
    """Chunks of 32 tokens."""
    options: dict[str, Any] = {"max_model_len": 512, "max_num_seqs": 4, "max_num_batched_tokens": 32}
    with LLM(str(reference.folder), optimization_level=0, enforce_eager=True, max_image_patches=256, **options) as made:
        yield made


def video(seed: int, count: int, height: int, width: int, **metadata: Any) -> tuple[np.ndarray, dict[str, Any]]:
    """Frames that differ."""
    frames = np.stack([np.asarray(picture(seed * 100 + number, height, width)) for number in range(count)])
    return frames, metadata


def test_answers(llm: LLM, reference: Reference) -> None:
    marker = reference.marker
    given = [
        video(1, 4, 30, 40, fps=25.0, total_num_frames=200, frames_indices=[0, 60, 120, 180]),
        # An odd number; the times of Qwen2.5-VL go further than the grid is wide.
        video(2, 9, 20, 24, fps=10.0, total_num_frames=90, frames_indices=list(range(0, 90, 10))),
        video(3, 2, 16, 60),
    ]
    prompts: list[tuple[str, list[Any], list[Any]]] = [
        (f"Look: {marker} and tell what happens.", [each], []) for each in given
    ]
    prompts.append((f"{marker} or {marker}?", given[:2], []))
    pictures = [picture(7, 20, 30), picture(8, 30, 12)]
    if not reference.name.startswith("glm"):
        # Of GLM, transformers takes no prompt with both.
        prompts.append((f"{reference.image_marker}, {marker}, {reference.image_marker}.", given[:1], pictures))
    asked = [
        {"prompt": text, "multi_modal_data": {"video": videos, "image": images}} for text, videos, images in prompts
    ]
    outputs = llm.generate(asked, GREEDY, use_tqdm=False)
    for (text, videos, images), output in zip(prompts, outputs, strict=True):
        frames: list[VideoFrames] = videos_of(videos)
        wanted = reference.answer(text, frames, images)
        assert list(output.prompt_token_ids or ()) == wanted[0], text
        assert list(output.outputs[0].token_ids) == wanted[1], text


def test_the_same_again(llm: LLM, reference: Reference) -> None:
    """Prefixes are shared as far as frames and times are the same."""
    frames, metadata = video(4, 8, 24, 24, fps=10.0, total_num_frames=80, frames_indices=list(range(0, 80, 10)))
    text = f"{reference.marker} What happens at last, and what before that? Answer in a word."

    def ask(given: dict[str, Any]) -> Any:
        prompt = {"prompt": text, "multi_modal_data": {"video": [(frames, given)]}}
        (output,) = llm.generate([prompt], GREEDY, use_tqdm=False)
        answer = list(output.prompt_token_ids or ()), list(output.outputs[0].token_ids)
        assert answer == reference.answer(text, videos_of([(frames, given)]))
        return output

    first, second = ask(metadata), ask(metadata)
    assert not first.num_cached_tokens
    assert second.num_cached_tokens >= len(first.prompt_token_ids) - 16
    # Twice as fast.
    faster = ask({**metadata, "fps": 20.0})
    assert (faster.num_cached_tokens or 0) < second.num_cached_tokens or reference.name == "qwen2_vl"


def test_a_conversation(llm: LLM, reference: Reference) -> None:
    frames, metadata = video(5, 4, 24, 24, fps=2.0)
    for given in (frames, list(frames), (frames, metadata)):
        parts = [{"type": "video", "video": given}, {"type": "text", "text": "What is <|video_pad|>?"}]
        (output,) = llm.chat([{"role": "user", "content": parts}], GREEDY, use_tqdm=False)
        # The marker in a user's text stands for nothing.
        (wanted,) = [
            reference.answer(f"user:{reference.marker}", videos_of(given))[0][:-1],
        ]
        assert list(output.prompt_token_ids or ())[: len(wanted)] == wanted
    with pytest.raises(RequestError, match=r"messages\[0\]\.content\[0\].*expected one video"):
        llm.chat([{"role": "user", "content": [{"type": "video", "video": [frames, frames]}]}], use_tqdm=False)


@pytest.mark.parametrize(
    ("text", "given", "reason"),
    [
        ("no place", {"video": np.zeros((2, 8, 8, 3), np.uint8)}, "0 places for videos"),
        ("VIDEO", {"image": np.zeros((8, 8, 3), np.uint8)}, "0 places for images"),
        ("VIDEO", {"video": np.zeros((2, 8, 8), np.uint8)}, "expected a video"),
        ("VIDEO", {"video": np.zeros((400, 48, 48, 3), np.uint8)}, "at most|max_model_len"),
        ("VIDEO VIDEO", {"video": np.zeros((2, 8, 8, 3), np.uint8)}, "2 places for videos"),
    ],
)
def test_wrong_prompts(llm: LLM, reference: Reference, text: str, given: dict[str, Any], reason: str) -> None:
    prompt = {"prompt": text.replace("VIDEO", reference.marker), "multi_modal_data": given}
    with pytest.raises(RequestError, match=reason):
        llm.generate([prompt], GREEDY, use_tqdm=False)
