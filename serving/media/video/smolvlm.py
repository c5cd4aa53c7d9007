"""Videos of SmolVLM2: each frame in a square, after the time at which it is shown."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar, Final, Self

from PIL import Image

from jaxllm.serving.media.image_processors.base import Normalisation
from jaxllm.serving.media.image_processors.idefics3 import LONGEST_SIDE, longest_becomes
from jaxllm.serving.media.image_processors.normalising import read_normalisation, require_rgb_and_resize
from jaxllm.serving.media.image_processors.settings import IMAGENET, LONGEST, SQUARE, Settings
from jaxllm.serving.media.video.frames import VideoFrames
from jaxllm.serving.media.video.processors import SAMPLING_FIELDS, ProcessedVideo, resized


@dataclass(frozen=True)
class SmolVLMVideo:
    """`SmolVLMVideoProcessor`."""

    size: dict[str, int]
    tile: int
    resample: Image.Resampling
    normalisation: Normalisation
    frames: int = 1

    REQUEST_FIELDS: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def read(cls, settings: Settings) -> Self:
        """Read a configuration. Raises the error of `settings`."""
        require_rgb_and_resize(settings)
        # Frames are never split, and have one size.
        settings.ignore(*SAMPLING_FIELDS, "do_image_splitting", "do_pad", "do_center_crop", "crop_size")
        size = settings.edges("size", {"longest_edge": 4 * 364}, (LONGEST, SQUARE), square=False)
        sampling = settings.section("video_sampling")
        if sampling is not None:
            size = sampling.edges("video_size", size, (LONGEST, SQUARE), square=False)
        return cls(
            size,
            settings.edges("max_image_size", {"longest_edge": 364}, (LONGEST,))["longest_edge"],
            settings.resample(Image.Resampling.LANCZOS),
            read_normalisation(settings, IMAGENET, IMAGENET),
        )

    def process(self, video: VideoFrames) -> ProcessedVideo:
        """Resize each frame as its shape has it, and then to a square."""
        count, height, width = video.frames.shape[:3]
        longest = self.size.get("longest_edge")
        inner = (
            (self.size["height"], self.size["width"])
            if longest is None
            else longest_becomes(height, width, min(longest, LONGEST_SIDE))
        )
        crops = tuple(
            resized(resized(frame, *inner, self.resample), self.tile, self.tile, self.resample)
            for frame in video.frames
        )
        return ProcessedVideo(
            crops, height, width, steps=count, indices=video.indices, fps=video.fps, sampled_fps=video.sampled_fps,
            duration=video.duration, num_frames=count,
        )  # fmt: skip

    def sides(self, count: int, height: int, width: int) -> tuple[int, int]:
        """Height and width that each frame gets."""
        del count, height, width
        return self.tile, self.tile


def timed_frames(frame: str, default_fps: float) -> Callable[[ProcessedVideo], str]:
    """What a prompt has in place of a video: how many frames there are, and each `frame` after its time."""

    def text(video: ProcessedVideo) -> str:
        seconds = [index / (video.fps or default_fps) for index in video.indices]
        duration = timedelta(seconds=int(seconds[-1] if video.duration is None else video.duration))
        frames = "".join(f"\nFrame from {int(each // 60):02d}:{int(each % 60):02d}:{frame}" for each in seconds)
        count = in_words(video.num_frames)
        return (
            f"You are provided the following series of {count} frames from a {duration} [H:MM:SS] video.\n{frames}\n\n"
        )

    return text


_SMALL: Final = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS: Final = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


def in_words(number: int) -> str:
    """A number below a million, as transformers writes it (num2words): one thousand, two hundred and thirty-four."""
    if number < len(_SMALL):
        return _SMALL[number]
    if number < 100:
        tens, ones = _TENS[number // 10 - 2], number % 10
        return f"{tens}-{_SMALL[ones]}" if ones else tens
    size, name = (1000, "thousand") if number >= 1000 else (100, "hundred")
    many, rest = divmod(number, size)
    before = f"{in_words(many)} {name}"
    if not rest:
        return before
    return f"{before}, {in_words(rest)}" if rest >= 100 else f"{before} and {in_words(rest)}"
