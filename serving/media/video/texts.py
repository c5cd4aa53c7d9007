"""What a prompt has in place of a video, as text: the tokens of its rows, and words about when frames are shown.

Each writes what transformers' processor of that name writes.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from jaxllm.serving.media.arranged_rows import ArrangedRows, reduced
from jaxllm.serving.media.placeholder import Model
from jaxllm.serving.media.placeholders import IMAGE, llava_side
from jaxllm.serving.media.video.processors import ProcessedVideo
from jaxllm.serving.media.video.smolvlm import timed_frames

DEFAULT_FPS: Final = 24.0
"""Where nobody knows, in transformers."""


@dataclass(frozen=True)
class VideoText:
    """`text` is what takes the place of `marker`, by a video and the rows of a patch in time.

    Rows stand there in place of the token `feature`. Where `is_whole`, those of all patches in time stand next to each
    other.
    """

    marker: str
    feature: str
    text: Callable[[ProcessedVideo, int], str]
    is_whole: bool = False
    arranged: Callable[[ProcessedVideo], ArrangedRows | None] = lambda video: None
    """Which rows of the tower stand there, if not each once, in order."""
    name: str | None = None
    """What prompts have for a video where the marker is several tokens, which nobody would write."""
    marker_tokens: tuple[str, ...] = ()
    """These tokens."""
    frame_rows: int | None = None
    """Rows of a frame in the prompt, if not all that the tower gives."""

    @property
    def tokens(self) -> tuple[str, ...]:
        """All that the tokenizer must have."""
        return (*(self.marker_tokens or (self.marker,)), self.feature)

    def with_markers(self, text: str) -> str:
        """The text with markers in place of names, unless it has a marker."""
        return text if self.name is None or self.marker in text else text.replace(self.name, self.marker)


def _qwen2(model: Model) -> VideoText:
    token = model.token("video_token", "<|video_pad|>")
    return VideoText(token, token, lambda video, rows: token * rows * video.steps, is_whole=True)


def _qwen3(model: Model) -> VideoText:
    token = model.token("video_token", "<|video_pad|>")
    start = model.token("vision_start_token", "<|vision_start|>")
    end = model.token("vision_end_token", "<|vision_end|>")

    def text(video: ProcessedVideo, rows: int) -> str:
        """Each patch in time after the middle of its frames' seconds."""
        size = len(video.indices) // video.steps
        seconds = [index / (video.fps or DEFAULT_FPS) for index in video.indices]
        middles = [(seconds[first] + seconds[first + size - 1]) / 2 for first in range(0, len(seconds), size)]
        return "".join(f"<{middle:.1f} seconds>{start}{token * rows}{end}" for middle in middles)

    return VideoText(token, token, text)


def _glm(shown: Callable[[float], str]) -> Callable[[Model], VideoText]:
    def make(model: Model) -> VideoText:
        token, marker = model.token("image_token", "<|image|>"), model.token("video_token", "<|video|>")

        def text(video: ProcessedVideo, rows: int) -> str:
            """Each patch in time before the second of its first frame."""
            size = len(video.indices) // video.steps
            seconds = [index / (video.fps or DEFAULT_FPS) for index in video.indices[::size]]
            return "".join(f"<|begin_of_image|>{token * rows}<|end_of_image|>{shown(second)}" for second in seconds)

        return VideoText(marker, token, text)

    return make


def _internvl(model: Model) -> VideoText:
    token, marker = model.token("context_image_token"), model.token("video_token", "<video>")
    start, end = model.token("start_image_token"), model.token("end_image_token")

    def text(video: ProcessedVideo, rows: int) -> str:
        """Frames with their numbers."""
        return "\n".join(f"Frame{number + 1}: {start}{token * rows}{end}" for number in range(video.steps))

    return VideoText(marker, token, text)


def _one_vision(model: Model) -> VideoText:
    side = math.isqrt(model.settings.integer("num_image_tokens", 729))
    token, pooled = model.token("video_token", model.settings.text("video_token", "<video>")), math.ceil(side / 2)

    def arranged(video: ProcessedVideo) -> ArrangedRows:
        """Half as many rows and columns of each frame, and a learned row at last. It comes first of a crop's rows."""
        of_crop = 1 + side * side
        parts = [
            reduced(np.arange(1, of_crop, dtype=np.int32).reshape(side, side) + frame * of_crop, pooled, pooled)
            for frame in range(video.steps)
        ]
        end = np.zeros((1, 4), np.int32), np.array([[1, 0, 0, 0]], np.float32)
        rows = np.concatenate([*[each[0].reshape(-1, 4) for each in parts], end[0]])
        weights = np.concatenate([*[each[1].reshape(-1, 4) for each in parts], end[1]])
        return ArrangedRows(rows.astype(np.int32), video.steps * of_crop, weights)

    text = lambda video, rows: token * (video.steps * pooled**2 + 1)  # noqa: E731
    return VideoText(token, token, text, is_whole=True, arranged=arranged, frame_rows=pooled**2)


def _llava_next(model: Model) -> VideoText:
    height, width = llava_side(model)
    token = model.token("video_token", model.settings.text("video_token", "<video>"))
    count = (height // 2) * (width // 2)

    def arranged(video: ProcessedVideo) -> ArrangedRows:
        """The rows of means of each frame, which come after a learned one, before those of its patches."""
        of_crop = 1 + count + height * width
        rows = np.arange(video.steps)[:, None] * of_crop + np.arange(1, 1 + count)
        return ArrangedRows(rows.ravel().astype(np.int32), video.steps * of_crop)

    text = lambda video, rows: token * (video.steps * count)  # noqa: E731
    return VideoText(token, token, text, is_whole=True, arranged=arranged, frame_rows=count)


def _smolvlm(model: Model) -> VideoText:
    token, fake = model.token("image_token", IMAGE), model.token("fake_image_token", "<fake_token_around_image>")
    whole = model.token("global_image_token", "<global-img>")

    def text(video: ProcessedVideo, rows: int) -> str:
        """Frames as images that are not split, with their times."""
        return timed_frames(f"{fake}{whole}{token * rows}{fake}", DEFAULT_FPS)(video)

    # The tokenizer has no token for a video.
    return VideoText(whole * 2, token, text, name=model.token("video_token", "<video>"), marker_tokens=(whole,))


VIDEO_TEXTS: Final[Mapping[str, tuple[str, Callable[[Model], VideoText]]]] = {
    "Glm46VProcessor": ("Glm46VVideoProcessor", _glm(lambda second: f"{second:.1f} seconds")),
    "Glm4vProcessor": ("Glm4vVideoProcessor", _glm(lambda second: str(int(second)))),
    "InternVLProcessor": ("InternVLVideoProcessor", _internvl),
    "LlavaNextVideoProcessor": ("LlavaNextVideoVideoProcessor", _llava_next),
    "LlavaOnevisionProcessor": ("LlavaOnevisionVideoProcessor", _one_vision),
    "Qwen2VLProcessor": ("Qwen2VLVideoProcessor", _qwen2),
    "Qwen2_5_VLProcessor": ("Qwen2VLVideoProcessor", _qwen2),
    "Qwen3VLProcessor": ("Qwen3VLVideoProcessor", _qwen3),
    "SmolVLMProcessor": ("SmolVLMVideoProcessor", _smolvlm),
}
"""By processor_class: the video processor that it has, unless the checkpoint says otherwise, and the text."""
