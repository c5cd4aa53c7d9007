"""Images, videos and sound as people give them with a prompt, and as they are when ready for the engine."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxllm.errors import RequestError, quoted
from jaxllm.models.towers.patches import Pixels
from jaxllm.requests.media import FIELD, MediaItem
from jaxllm.serving.media.pictures import pixels_of
from jaxllm.serving.media.video.frames import VideoFrames, videos_of
from jaxllm.serving.text.messages import IMAGE, VIDEO
from jaxllm.serving.text.prompt_sound import GivenSound, window_of


@dataclass(frozen=True, slots=True)
class PreparedImage:
    """An image or video as the engine takes it, and the text in its place.

    Of a video, `items` may be several, each a patch in time. `medium` is a type of `MEDIA`.
    """

    items: tuple[MediaItem, ...]
    text: str
    medium: str = IMAGE

    @property
    def num_rows(self) -> int:
        """The places in a prompt that it takes."""
        return sum(item.num_rows for item in self.items)


def medium_of(given: "Pixels | VideoFrames | PreparedImage") -> str:
    """Whether it is an image or a video."""
    if isinstance(given, PreparedImage):
        return given.medium
    return VIDEO if isinstance(given, VideoFrames) else IMAGE


def images_of(given: Any) -> "list[Pixels | VideoFrames | PreparedImage]":
    """The images and videos in vLLM's `multi_modal_data`: {"image": one or a list, "video": one or a list}.

    Raises `RequestError`.
    """
    if not isinstance(given, dict) or set(given) - {"image", "video"}:
        kinds = ", ".join(map(quoted, given)) if isinstance(given, dict) else type(given).__name__
        raise RequestError(
            f"{FIELD}: expected {{'image': one image or a list, 'video': one video or a list}} or {{'audio': one "
            f"window of sound or a list}}, got {kinds}",
            FIELD,
        )
    images, videos = given.get("image"), given.get("video")
    several = [] if images is None else images if isinstance(images, (list, tuple)) else [images]
    found: list[Pixels | VideoFrames | PreparedImage] = [
        each if isinstance(each, PreparedImage) else pixels_of(each) for each in several
    ]
    if isinstance(videos, list) and videos and all(isinstance(each, (PreparedImage, VideoFrames)) for each in videos):
        return [*found, *videos]
    return [*found, *videos_of(videos)]


def sound_of(given: Mapping[str, Any]) -> list[GivenSound]:
    """The windows in {"audio": one or a list}. Raises `RequestError` for anything else."""
    if len(given) > 1:
        raise RequestError(f"{FIELD}: 'audio' cannot be combined with {', '.join(set(given) - {'audio'})}", FIELD)
    windows = given["audio"]
    return [window_of(each) for each in (windows if isinstance(windows, list) else [windows])]
