"""Families that see each frame as a square: prompts and answers are those of transformers."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from jaxllm import LLM, SamplingParams
from jaxllm.serving.media.checkpoint import ImageModel
from jaxllm.serving.media.video.checkpoint import VideoModel
from jaxllm.serving.media.video.frames import VideoFrames, videos_of
from tests.e2e.images.families import internvl, llava_next
from tests.e2e.images.families.case import SeeingCase
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


CASES = {
    "internvl": with_videos(internvl.CASES["internvl"]),
    "onevision": with_videos(llava_next.CASES["llava onevision"]),
}


@pytest.fixture(scope="module", params=CASES)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, demo_folder: Path) -> Saved:
    found = Saved(CASES[request.param], tmp_path_factory.mktemp("video"), demo_folder)
    sizes = {"size": {"height": 56, "width": 56}, "do_sample_frames": False, "num_frames": 8}
    (found.folder / "video_preprocessor_config.json").write_text(json.dumps(sizes))
    return found


def answer(saved: Saved, text: str, videos: list[VideoFrames]) -> tuple[list[int], list[int]]:
    """Token ids of the prompt, and of transformers' answer."""
    model = VideoModel.read(saved.folder, ImageModel.read(saved.folder))
    assert model is not None
    whole: Any = saved.processor.whole
    whole.video_token = "<video>"
    floats = []
    for video in videos:
        frames = np.stack(model.process(video, None).crops).astype(np.float32)
        floats.append(torch.from_numpy(((frames * np.float32(1 / 255) - MEAN) / STD).transpose(0, 3, 1, 2)))
        written = whole.replace_video_token({"pixel_values_videos": [SimpleNamespace(shape=frames.shape)]}, 0)
        text = text.replace("<video>", written.replace("video", "VIDEO"), 1)
    ids = saved.processor.tokenizer(text.replace("VIDEO", "video"), return_tensors="pt")["input_ids"]
    is_internvl = "InternVL" in type(saved.model).__name__
    pixels = {"pixel_values": torch.cat(floats)} if is_internvl else {"pixel_values_videos": torch.stack(floats)}
    with torch.no_grad():
        found = saved.model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False, eos_token_id=None,
            pad_token_id=0, **pixels,
        )  # fmt: skip
    return ids[0].tolist(), found[0, ids.shape[1] :].tolist()


def test_answers(saved: Saved) -> None:
    given = [
        np.stack([np.asarray(picture(number + 10 * seed, 40, 70)) for number in range(count)])
        for seed, count in ((1, 3), (2, 3), (3, 1))
    ]
    prompts = [("Look: <video> and tell what happens.", [each]) for each in given]
    prompts.append(("<video> or <video>?", given[:2]))
    options: dict[str, Any] = {"max_model_len": 256, "max_num_seqs": 4, "max_num_batched_tokens": 32}
    with LLM(str(saved.folder), optimization_level=0, enforce_eager=True, **options) as llm:
        asked = [{"prompt": text, "multi_modal_data": {"video": videos}} for text, videos in prompts]
        outputs = llm.generate(asked, GREEDY, use_tqdm=False)
    assert len({tuple(output.outputs[0].token_ids) for output in outputs}) == len(prompts)
    for (text, videos), output in zip(prompts, outputs, strict=True):
        found = list(output.prompt_token_ids or ()), list(output.outputs[0].token_ids)
        assert found == answer(saved, text, videos_of(videos)), text
