"""`VideoLimits`: how large a video may be."""

from collections.abc import Callable
from dataclasses import dataclass

from jaxllm.serving.media.errors import MediaDecodeError, MediaTooLargeError


@dataclass(frozen=True)
class VideoLimits:
    """The most `pixels` of a frame, `seconds`, and `all_pixels` of the frames that are used."""

    pixels: int
    seconds: int
    all_pixels: int
    reserve: Callable[[int, int, int], None] = lambda width, height, count: None
    """Called with width, height and number of the frames that are used, before any is decoded."""

    def check_size(self, width: int, height: int) -> None:
        """Raise `MediaTooLargeError` for too large frames, and `MediaDecodeError` for empty ones."""
        if width < 1 or height < 1:
            raise MediaDecodeError(f"the frames of the video have {width}x{height} pixels")
        if width * height > self.pixels:
            raise MediaTooLargeError(
                f"the frames of the video have {width}x{height} = {width * height} pixels; at most {self.pixels} are "
                "allowed"
            )

    def check_seconds(self, seconds: float) -> None:
        """Raise `MediaTooLargeError` for too long a video."""
        if not seconds <= self.seconds:
            raise MediaTooLargeError(f"the video has {seconds:.1f} s or more; at most {self.seconds} s are allowed")

    def check_frames(self, width: int, height: int, count: int) -> None:
        """Raise `MediaTooLargeError` where the frames that are used have too many pixels, all together."""
        self.check_size(width, height)
        if width * height * count > self.all_pixels:
            raise MediaTooLargeError(
                f"{count} frames of {width}x{height} have {width * height * count} pixels; at most {self.all_pixels} "
                "are allowed: ask for fewer frames (media_io_kwargs), or send a smaller video"
            )
        self.reserve(width, height, count)
