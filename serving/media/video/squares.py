"""Video processors of models that see each frame as a square of one size: InternVL and LLaVA's."""

from dataclasses import dataclass
from typing import ClassVar, Self

from PIL import Image

from jaxllm.serving.media.image_processors.arithmetic import center_crop, edges_of
from jaxllm.serving.media.image_processors.base import Normalisation
from jaxllm.serving.media.image_processors.normalising import read_normalisation, require_rgb_and_resize
from jaxllm.serving.media.image_processors.settings import CLIP_MEAN, CLIP_STD, SHORTEST, SQUARE, Settings
from jaxllm.serving.media.video.frames import VideoFrames
from jaxllm.serving.media.video.processors import SAMPLING_FIELDS, ProcessedVideo, resized


@dataclass(frozen=True)
class SquareVideo:
    """`InternVLVideoProcessor` and `LlavaOnevisionVideoProcessor`."""

    height: int
    width: int
    resample: Image.Resampling
    normalisation: Normalisation
    frames: int = 1

    REQUEST_FIELDS: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def read(cls, settings: Settings) -> Self:
        """Read a configuration. Raises the error of `settings`."""
        require_rgb_and_resize(settings)
        settings.require("do_center_crop", False, False)
        settings.ignore(
            *SAMPLING_FIELDS, "initial_shift", "crop_size", "do_pad",
            # Of images, where videos have no file of their own.
            "image_grid_pinpoints", "crop_to_patches", "min_patches", "max_patches",
        )  # fmt: skip
        size = settings.edges("size", {"height": 384, "width": 384}, (SQUARE,), square=False)
        resample = settings.resample(Image.Resampling.BICUBIC)
        return cls(size["height"], size["width"], resample, read_normalisation(settings, CLIP_MEAN, CLIP_STD))

    def process(self, video: VideoFrames) -> ProcessedVideo:
        """Resize each frame."""
        count, height, width = video.frames.shape[:3]
        crops = tuple(resized(frame, self.height, self.width, self.resample) for frame in video.frames)
        return ProcessedVideo(
            crops, height, width, steps=count, indices=video.indices, fps=video.fps, sampled_fps=video.sampled_fps,
            duration=video.duration, num_frames=count,
        )  # fmt: skip

    def sides(self, count: int, height: int, width: int) -> tuple[int, int]:
        """Height and width that each frame gets."""
        del count, height, width
        return self.height, self.width


@dataclass(frozen=True)
class CroppedVideo:
    """`LlavaNextVideoVideoProcessor`: the middle of each frame, as CLIP has it."""

    size: dict[str, int]
    crop: dict[str, int]
    resample: Image.Resampling
    normalisation: Normalisation
    frames: int = 1

    REQUEST_FIELDS: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def read(cls, settings: Settings) -> Self:
        """Read a configuration. Raises the error of `settings`."""
        require_rgb_and_resize(settings)
        settings.require("do_center_crop", True, True)
        # The last is of images, where videos have no file of their own.
        settings.ignore(*SAMPLING_FIELDS, "do_pad", "image_grid_pinpoints")
        size = settings.edges("size", {"shortest_edge": 224}, (SHORTEST, SQUARE), square=False)
        crop = settings.edges("crop_size", {"height": 224, "width": 224}, (SQUARE,))
        resample = settings.resample(Image.Resampling.BICUBIC)
        return cls(size, crop, resample, read_normalisation(settings, CLIP_MEAN, CLIP_STD))

    def process(self, video: VideoFrames) -> ProcessedVideo:
        """Resize each frame, and cut its middle out."""
        count, height, width = video.frames.shape[:3]
        inner = edges_of(video.frames[0], self.size)
        crops = tuple(
            center_crop(resized(frame, *inner, self.resample), self.crop["height"], self.crop["width"])
            for frame in video.frames
        )
        return ProcessedVideo(
            crops, height, width, steps=count, indices=video.indices, fps=video.fps, sampled_fps=video.sampled_fps,
            duration=video.duration, num_frames=count,
        )  # fmt: skip

    def sides(self, count: int, height: int, width: int) -> tuple[int, int]:
        """Height and width that each frame gets."""
        del count, height, width
        return self.crop["height"], self.crop["width"]
