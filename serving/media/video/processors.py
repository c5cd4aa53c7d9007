"""Video processors: the frames that a model sees, in the sizes that transformers' processors give them.

Those resize with torch, whose weights have fewer bits than Pillow's: up to 1 % of bytes differ, by one or rarely two.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol, Self

from PIL import Image

from jaxllm.errors import RequestError
from jaxllm.serving.media.image_processors.arithmetic import resize
from jaxllm.serving.media.image_processors.base import Bytes, Normalisation, ProcessedImage
from jaxllm.serving.media.image_processors.normalising import read_normalisation, require_rgb_and_resize
from jaxllm.serving.media.image_processors.qwen2_vl import MOST_ASPECT, fit
from jaxllm.serving.media.image_processors.settings import (
    CLIP_MEAN,
    CLIP_STD,
    IMAGENET,
    PIXEL_COUNTS,
    PIXELS,
    Settings,
)
from jaxllm.serving.media.video.frames import VideoFrames

FIELD: Final = "video_url"
SAMPLING_FIELDS: Final = (
    "do_sample_frames", "fps", "num_frames", "min_frames", "max_frames", "max_duration", "use_token_compression",
    "video_metadata", "return_metadata", "video_processor_type", "pad_size",
)  # fmt: skip
"""Fields that choose frames, or change nothing: all frames that are given are used."""


@dataclass(frozen=True)
class ProcessedVideo(ProcessedImage):
    """One video as the vision tower sees it: `crops` are frames of one size, those of a patch next to each other.

    `rows` and `columns` are patches of a frame.
    """

    steps: int = 1
    """Patches in time."""
    indices: tuple[int, ...] = ()
    """The number of each frame in the whole video; one that repeats the last has that of it."""
    fps: float | None = None
    sampled_fps: float = 24.0
    duration: float | None = None
    num_frames: int = 0
    """Frames before any was repeated."""


class VideoProcessor(Protocol):
    """Turns frames into those that a tower sees. Immutable, and shared by threads."""

    REQUEST_FIELDS: ClassVar[tuple[str, ...]]

    @classmethod
    def read(cls, settings: Settings) -> Self:
        """Read a configuration; the caller then checks that every field was read."""
        ...

    @property
    def normalisation(self) -> Normalisation:
        """What the device does with the bytes."""
        ...

    def process(self, video: VideoFrames) -> ProcessedVideo:
        """Process frames. Raises `RequestError` for those that the model cannot take."""
        ...


@dataclass(frozen=True)
class Qwen2VLVideo:
    """`Qwen2VLVideoProcessor`, also of Qwen2.5-VL: every frame has a number of pixels within bounds."""

    min_pixels: int
    max_pixels: int
    patch_size: int
    merge_size: int
    frames: int
    resample: Image.Resampling
    normalisation: Normalisation
    most_tokens: int | None
    """Where the bounds depend on the number of frames: tokens that they are divided by."""

    REQUEST_FIELDS: ClassVar[tuple[str, ...]] = ("size", "min_pixels", "max_pixels")
    DEFAULT_PIXELS: ClassVar[tuple[int, int]] = (128 * 28 * 28, 28 * 28 * 768)
    DEFAULT_PATCH: ClassVar[int] = 14
    DEFAULT_TOKENS: ClassVar[int] = 128_000
    DEFAULT_STATISTICS: ClassVar[tuple[tuple[float, ...], tuple[float, ...]]] = (CLIP_MEAN, CLIP_STD)

    @classmethod
    def read(cls, settings: Settings) -> Self:
        """Read a configuration. Raises the error of `settings`."""
        require_rgb_and_resize(settings)
        # All frames that are given are used.
        settings.ignore(
            *SAMPLING_FIELDS, "max_image_size", "do_center_crop", "crop_size", "do_pad", "default_to_square"
        )
        low, high = cls.DEFAULT_PIXELS
        size = settings.edges(
            "size", {"shortest_edge": low, "longest_edge": high}, (PIXELS, PIXEL_COUNTS), square=False
        )
        low = size.get("shortest_edge", size.get("min_pixels", low))
        high = size.get("longest_edge", size.get("max_pixels", high))
        low, high = (
            settings.integer(name, each, 1, 1 << 32) for name, each in (("min_pixels", low), ("max_pixels", high))
        )
        if low > high:
            raise settings.fail(f"at least {low} pixels, and at most {high}: no video can have both")
        caps = settings.flag("cap_pixels_per_frame", False)
        tokens = settings.integer("max_video_tokens", cls.DEFAULT_TOKENS, 1, 1 << 24)
        return cls(
            low,
            high,
            settings.integer("patch_size", cls.DEFAULT_PATCH, 1, 256),
            settings.integer("merge_size", 2, 1, 16),
            settings.integer("temporal_patch_size", 2, 1, 16),
            settings.resample(Image.Resampling.BICUBIC),
            read_normalisation(settings, *cls.DEFAULT_STATISTICS),
            tokens if caps else None,
        )

    @property
    def factor(self) -> int:
        """Pixels of a side of what becomes one token."""
        return self.patch_size * self.merge_size

    def process(self, video: VideoFrames) -> ProcessedVideo:
        """Process frames; the last is repeated until patches in time are full."""
        count, height, width = video.frames.shape[:3]
        new_height, new_width = self.sides(count, height, width)
        crops = [resized(frame, new_height, new_width, self.resample) for frame in video.frames]
        missing = -count % self.frames
        return ProcessedVideo(
            (*crops, *[crops[-1]] * missing),
            height,
            width,
            new_height // self.patch_size,
            new_width // self.patch_size,
            (count + missing) // self.frames,
            (*video.indices, *[video.indices[-1]] * missing),
            video.fps,
            video.sampled_fps,
            video.duration,
            count,
        )

    def sides(self, count: int, height: int, width: int) -> tuple[int, int]:
        """Height and width that each of so many frames gets. Raises `RequestError` for a strip."""
        _check_aspect(height, width)
        high = self.max_pixels
        if self.most_tokens is not None:
            total = int(self.most_tokens * self.factor**2 * 0.9)
            high = max(min(high, total * self.frames // count), int(self.min_pixels * 1.05))
        return fit(height, width, self.factor, self.min_pixels, high)


@dataclass(frozen=True)
class Qwen3VLVideo(Qwen2VLVideo):
    """`Qwen3VLVideoProcessor`: bounds are of the pixels of all frames together."""

    DEFAULT_PIXELS: ClassVar[tuple[int, int]] = (128 * 32 * 32, 32 * 32 * 768)
    DEFAULT_PATCH: ClassVar[int] = 16
    DEFAULT_TOKENS: ClassVar[int] = 768
    DEFAULT_STATISTICS: ClassVar[tuple[tuple[float, ...], tuple[float, ...]]] = (IMAGENET, IMAGENET)

    def sides(self, count: int, height: int, width: int) -> tuple[int, int]:
        """Height and width that each of so many frames gets. Raises `RequestError` for a strip, and too few frames."""
        if count < self.frames:
            raise RequestError(f"a video of {count} frame: this model takes at least {self.frames}", FIELD)
        factor = self.factor
        if min(height, width) < factor:
            scale = max(factor / height, factor / width)
            height, width = int(height * scale), int(width * scale)
        _check_aspect(height, width)
        high = self.max_pixels
        if self.most_tokens is not None:
            high = count * max(min(self.most_tokens * factor**2, high // count), int(self.min_pixels * 1.05))
        new_height, new_width = round(height / factor) * factor, round(width / factor) * factor
        whole = round(count / self.frames) * self.frames * new_height * new_width
        if whole > high:
            beta = math.sqrt(count * height * width / high)
            return tuple(max(factor, math.floor(side / beta / factor) * factor) for side in (height, width))  # type: ignore[return-value]
        if whole < self.min_pixels:
            beta = math.sqrt(self.min_pixels / (count * height * width))
            return math.ceil(height * beta / factor) * factor, math.ceil(width * beta / factor) * factor
        return new_height, new_width


@dataclass(frozen=True)
class GLM4VVideo(Qwen3VLVideo):
    """`Glm4vVideoProcessor` and `Glm46VVideoProcessor`."""

    REQUEST_FIELDS: ClassVar[tuple[str, ...]] = ("size",)
    DEFAULT_PIXELS: ClassVar[tuple[int, int]] = (112 * 112, 28 * 28 * 2 * 30000)
    DEFAULT_PATCH: ClassVar[int] = 14
    DEFAULT_STATISTICS: ClassVar[tuple[tuple[float, ...], tuple[float, ...]]] = (CLIP_MEAN, CLIP_STD)


def resized(frame: Bytes, height: int, width: int, resample: Image.Resampling) -> Bytes:
    """A frame in another size. Raises `RequestError` for too large a one."""
    # Across first, as torch does it: Pillow alone takes the cheaper way, and rounds in between.
    return resize(resize(frame, frame.shape[0], width, resample), height, width, resample)


def _check_aspect(height: int, width: int) -> None:
    if max(height, width) > MOST_ASPECT * min(height, width):
        raise RequestError(
            f"a video of {width}x{height} pixels is too long: its sides may differ by a factor of {MOST_ASPECT}", FIELD
        )
