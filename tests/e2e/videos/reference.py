"""Small models that see videos, and the answers that transformers gives with the same frames.

Video processors of transformers need torchvision, which is not there: frames are those of ours, which
`tests/serving/media/video/test_processors.py` compares with torch, and the text is that of transformers' processors.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoTokenizer
from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.video_utils import VideoMetadata

from jaxllm.models.towers.patches import cut_patches
from jaxllm.serving.media.checkpoint import ImageModel
from jaxllm.serving.media.video.checkpoint import VideoModel
from jaxllm.serving.media.video.frames import VideoFrames
from jaxllm.serving.media.video.processors import ProcessedVideo
from tests.e2e.images.families.grids import CLIP_MEAN, CLIP_STD
from tests.e2e.images.qwen import FAMILIES, MEAN, OTHERS, STD, make_model
from tests.e2e.images.qwen_prompts import MERGE, PATCH

QWEN = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
GLM = ("<|begin_of_image|>", "<|end_of_image|>", "<|image|>", "<|video|>", "<|begin_of_video|>", "<|end_of_video|>")
SIDE, LONGEST = PATCH * MERGE, 48
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}:{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% elif part['type'] == 'image' %}IMAGE"
    "{% elif part['type'] == 'video' %}VIDEO{% endif %}"
    "{% endfor %}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)


class Reference:
    """A model of a family in `folder`, and transformers' own."""

    def __init__(self, name: str, folder: Path, demo: Path) -> None:
        family = {**FAMILIES, **OTHERS}[name]
        is_glm = name.startswith("glm")
        names, kind = (GLM, Glm4vImageProcessorPil) if is_glm else (QWEN, Qwen2VLImageProcessorPil)
        self.marker = "<|begin_of_video|><|video|><|end_of_video|>" if is_glm else f"{QWEN[0]}{QWEN[3]}{QWEN[1]}"
        self.image_marker = "".join((names[0], names[2], names[1]))
        tokenizer = AutoTokenizer.from_pretrained(demo)
        tokenizer.add_special_tokens({"additional_special_tokens": list(names)})
        tokenizer.chat_template = TEMPLATE.replace("VIDEO", self.marker).replace("IMAGE", self.image_marker)
        tokenizer.save_pretrained(folder)
        scale = 2 if is_glm else 1
        size = {"shortest_edge": scale * SIDE**2, "longest_edge": scale * LONGEST**2}
        self.images = kind(patch_size=PATCH, merge_size=MERGE, size=size)
        self.images.save_pretrained(folder)
        processor = "Qwen3VL" if name == "qwen3_5" else family.name
        file = folder / "preprocessor_config.json"
        fields = {**json.loads(file.read_text()), "processor_class": f"{processor}Processor"}
        file.write_text(json.dumps(fields))
        whole = {"qwen2_vl": 1, "qwen2_5_vl": 1}.get(name, 6)
        videos = {
            "patch_size": PATCH, "merge_size": MERGE, "temporal_patch_size": 2, "do_sample_frames": False,
            "image_mean": CLIP_MEAN, "image_std": CLIP_STD, "fps": 2, "min_frames": 4,
            "size": {"shortest_edge": SIDE**2, "longest_edge": whole * 24 * 32},
        }  # fmt: skip
        (folder / "video_preprocessor_config.json").write_text(json.dumps(videos))
        ids = [tokenizer.convert_tokens_to_ids(name) for name in names]
        self.model = make_model(family, (ids[0], ids[1], ids[2], ids[3]), len(tokenizer))
        if is_glm:
            self.model.config.video_start_token_id, self.model.config.video_end_token_id = ids[4], ids[5]
        self.model.save_pretrained(folder)
        self.whole: Any = object.__new__(getattr(transformers, f"{processor}Processor"))
        texts = dict(zip(("vision_start_token", "vision_end_token", "image_token", "video_token"), names, strict=False))
        for key, value in {
            **texts,
            "video_processor": SimpleNamespace(merge_size=MERGE, temporal_patch_size=2),
        }.items():
            setattr(self.whole, key, value)
        if name in ("qwen2_vl", "qwen2_5_vl"):
            self.model.model.get_rope_index = counting_on(self.model.model.get_rope_index)
        self.tokenizer, self.folder, self.name, self.ids = tokenizer, folder, name, ids
        found = VideoModel.read(folder, ImageModel.read(folder))
        assert found is not None
        self.videos = found

    def answer(
        self, text: str, videos: Sequence[VideoFrames], images: Sequence[Any] = ()
    ) -> tuple[list[int], list[int]]:
        """Token ids of the prompt, and of the answer."""
        inputs = self.inputs(text, videos, images)
        self.model.model.rope_deltas = None
        with torch.no_grad():
            told = self.model.generate(**inputs, max_new_tokens=8, do_sample=False, eos_token_id=None)
        ids = inputs["input_ids"]
        return ids[0].tolist(), told[0, ids.shape[1] :].tolist()

    def inputs(self, text: str, videos: Sequence[VideoFrames], images: Sequence[Any] = ()) -> dict[str, Any]:
        """What a model of transformers is given."""
        found: dict[str, Any] = dict(self.images(list(images), return_tensors="pt")) if images else {}
        for grid in found.get("image_grid_thw", ()):
            text = text.replace(self.image_marker, self.image_marker.replace("|", "I" * (int(grid.prod()) // 4)), 1)
        token = self.whole.image_token
        for grid in found.get("image_grid_thw", ()):
            count = int(grid.prod()) // MERGE**2
            text = text.replace(
                self.image_marker.replace("|", "I" * count), self.image_marker.replace(token, token * count), 1
            )
        processed = [self.videos.process(video, None) for video in videos]
        for number, video in enumerate(videos):
            text = text.replace(
                self.whole.video_token, self._text(processed[number], video).replace("video", "VIDEO"), 1
            )
        ids = self.tokenizer(text.replace("VIDEO", "video"), return_tensors="pt")["input_ids"]
        found |= {"input_ids": ids, "attention_mask": torch.ones_like(ids), "mm_token_type_ids": self._types(ids)}
        if videos:
            found["pixel_values_videos"] = torch.cat([numbers(video) for video in processed])
            found["video_grid_thw"] = torch.tensor([[each.steps, each.rows, each.columns] for each in processed])
            if self.name == "qwen2_5_vl":
                seconds = [2 / self._metadata(video).sampled_fps for video in videos]
                found["second_per_grid_ts"] = torch.tensor(seconds)
        return found

    def _metadata(self, video: VideoFrames) -> VideoMetadata:
        return VideoMetadata(video.total, video.fps, frames_indices=list(video.indices))

    def _text(self, processed: ProcessedVideo, video: VideoFrames) -> str:
        grid = torch.tensor([[processed.steps, processed.rows, processed.columns]])
        written: str = self.whole.replace_video_token(
            {"video_grid_thw": grid, "video_metadata": [self._metadata(video)]}, 0
        )
        return written

    def _types(self, ids: torch.Tensor) -> torch.Tensor:
        """1 for tokens of images, 2 for those of videos."""
        if self.name.startswith("glm"):
            inside = (ids == self.ids[4]).cumsum(1) > (ids == self.ids[5]).cumsum(1)
            return (ids == self.ids[2]).int() * (1 + inside.int())
        return (ids == self.ids[2]).int() + 2 * (ids == self.ids[3]).int()


def counting_on(positions_of: Callable[..., Any]) -> Callable[..., Any]:
    """Positions of transformers, but what follows a video counts on from its largest one, as in transformers 4."""

    def call(input_ids: torch.Tensor, mm_token_type_ids: torch.Tensor, **options: Any) -> Any:
        positions, _ = positions_of(input_ids, mm_token_type_ids, **options)
        types = mm_token_type_ids[0].tolist()
        for end in range(1, len(types)):
            if types[end - 1] == 2 and types[end] != 2:
                positions[:, 0, end:] += positions[:, 0, :end].max() + 1 - positions[0, 0, end]
        return positions, positions.max().reshape(1, 1) + 1 - len(types)

    return call


def numbers(video: ProcessedVideo) -> torch.Tensor:
    """The frames as a model of transformers takes them: [P, channels * frames * height * width]."""
    cut = np.stack([cut_patches(frame, PATCH, MERGE) for frame in video.crops]).reshape(
        video.steps, 2, -1, PATCH, PATCH, 3
    )
    floats = (cut.astype(np.float32) * np.float32(1 / 255) - MEAN) / STD
    return torch.from_numpy(floats.transpose(0, 2, 5, 1, 3, 4).reshape(video.steps * cut.shape[2], -1).copy())
