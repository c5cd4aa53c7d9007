"""Videos of prompts, made ready for the engine."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from jaxllm.config.engine_info import ImageInfo
from jaxllm.errors import ConfigError, RequestError, quoted
from jaxllm.models.towers.patches import Pixels, cut_patches
from jaxllm.requests.media import Arrangement, ImageCrop, MediaItem
from jaxllm.serving.media.checkpoint import ImageModel
from jaxllm.serving.media.video.checkpoint import VideoModel
from jaxllm.serving.media.video.frames import VideoFrames
from jaxllm.serving.media.video.processors import ProcessedVideo
from jaxllm.serving.text.given_images import PreparedImage
from jaxllm.serving.text.messages import VIDEO
from jaxllm.serving.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PromptVideos:
    """How a model takes videos: patches of several frames, which the tower sees as it sees an image's."""

    model: VideoModel
    info: ImageInfo
    """Of images."""

    @classmethod
    def of(
        cls,
        folder: Path,
        images: ImageModel,
        info: ImageInfo,
        tokenizer: Tokenizer,
        kwargs: Mapping[str, Any] | None = None,
    ) -> Self | None:
        """From the files of the model; None where it takes no videos, with a warning where its files forbid it."""
        try:
            model = VideoModel.read(folder, images, kwargs)
        except ConfigError as error:
            logger.warning("videos are refused: %s", error)
            return None
        if model is None:
            return None
        problem = _misfit(model, images, info, tokenizer)
        if problem is not None:
            logger.warning("videos are refused: %s", problem)
            return None
        return cls(model, info)

    def check(self, video: VideoFrames, kwargs: Mapping[str, Any] | None = None) -> None:
        """Raise `RequestError` for a video whose frames would have too many patches, before it is processed."""
        processor: Any = self.model.overridden(kwargs or {})
        count, height, width = video.frames.shape[:3]
        new_height, new_width = processor.sides(count, height, width)
        patches = (new_height // self.info.patch_size) * (new_width // self.info.patch_size)
        steps = -(-count // self.info.frames)
        own = self.model.text.frame_rows
        rows = steps * (self.info.rows_of(patches) if own is None else own)
        if patches > self.info.most_patches:
            raise RequestError(
                f"a video of {width} x {height} pixels is too large: a frame would have {patches} patches, and the "
                f"engine takes at most {self.info.most_patches} (max_image_patches); give a smaller video",
                "video_url",
            )
        if rows > self.info.most_rows:
            raise RequestError(
                f"a video of {count} frames of {width} x {height} pixels takes {rows} tokens, but the engine holds at "
                f"most {self.info.most_rows} of a request (media_pool_tokens); give fewer or smaller frames",
                "video_url",
            )

    def prepare(self, video: VideoFrames, kwargs: Mapping[str, Any] | None = None) -> PreparedImage:
        """Process a video with a request's mm_processor_kwargs. Raises `RequestError`."""
        self.check(video, kwargs)
        return self.prepared(self.model.process(video, kwargs))

    def prepared(self, video: ProcessedVideo) -> PreparedImage:
        """The video as the engine takes it, with the text in its place."""
        size = len(video.crops) // video.steps
        crops = tuple(self._crop(video.crops[first : first + size]) for first in range(0, len(video.crops), size))
        rows = self.info.rows_of(len(crops[0].patches))
        text = self.model.text.text(video, rows)
        items: tuple[MediaItem, ...]
        arranged = self.model.text.arranged(video)
        if arranged is not None:
            items = (MediaItem.with_rows(crops, arranged.num_rows, Arrangement.of(arranged.rows, arranged.weights)),)
        elif self.model.text.is_whole:
            items = (MediaItem.with_rows(crops, rows * len(crops), times=self._times(video)),)
        else:
            items = tuple(MediaItem.with_rows((crop,), rows) for crop in crops)
        return PreparedImage(items, text, VIDEO)

    def _crop(self, frames: tuple[Pixels, ...]) -> ImageCrop:
        """The patches of so many frames: of each patch one frame after the other."""
        patch = self.info.patch_size
        height, width = frames[0].shape[0] // patch, frames[0].shape[1] // patch
        patches = np.concatenate([cut_patches(frame, patch, self.info.merge) for frame in frames], axis=1)
        return ImageCrop(patches, height, width)

    def _times(self, video: ProcessedVideo) -> tuple[int, ...]:
        """Positions in time, as `get_vision_position_ids` of transformers gives them in float32."""
        steps = np.arange(video.steps)
        if self.info.tokens_per_second is None:
            return tuple(steps.tolist())
        seconds = np.float32(self.info.frames / video.sampled_fps)
        return tuple((steps.astype(np.float32) * (self.info.tokens_per_second * seconds)).astype(np.int64).tolist())


def _misfit(model: VideoModel, images: ImageModel, info: ImageInfo, tokenizer: Tokenizer) -> str | None:
    """Why the files do not go together, if they do not."""
    processor: Any = model.processor
    wanted = {"patch_size": info.patch_size, "merge_size": info.merge, "frames": info.frames}
    for name, value in wanted.items():
        if hasattr(processor, name) and getattr(processor, name) != value:
            return f"{name} of the video processor is {getattr(processor, name)}, and that of the model {value}"
    if info.side is not None:
        sides = tuple(side // info.patch_size for side in processor.sides(1, 1, 1))
        if sides != (info.side, info.side):
            return f"the video processor makes frames of {sides} patches, and the model sees {info.side} each way"
    if processor.normalisation != images.processor.normalisation:
        return "videos are normalised otherwise than images"
    for token in model.text.tokens:
        if token not in tokenizer.token_ids:
            return f"the tokenizer has no token {quoted(token)}"
    if tokenizer.token_ids[model.text.feature] not in info.token_ids:
        return f"the model's configuration has another token for videos than {quoted(model.text.feature)}"
    return None
