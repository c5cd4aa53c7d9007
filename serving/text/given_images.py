"""Images and sound as people give them with a prompt, and as they are when they are made ready for the engine."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxllm.errors import RequestError, quoted
from jaxllm.models.towers.patches import Pixels
from jaxllm.requests.media import FIELD, MediaItem
from jaxllm.serving.media.pictures import pixels_of
from jaxllm.serving.text.prompt_sound import GivenSound, window_of


@dataclass(frozen=True, slots=True)
class PreparedImage:
    """An image as the engine takes it, and the text in its place."""

    item: MediaItem
    text: str


def images_of(given: Any) -> list[Pixels | PreparedImage]:
    """The images in vLLM's `multi_modal_data`: {"image": one or a list}. Raises `RequestError`."""
    if not isinstance(given, dict) or set(given) - {"image"}:
        kinds = ", ".join(map(quoted, given)) if isinstance(given, dict) else type(given).__name__
        raise RequestError(
            f"{FIELD}: expected {{'image': one image or a list}} or {{'audio': one window of sound or a list}}, "
            f"got {kinds}",
            FIELD,
        )
    images = given.get("image")
    if images is None:
        return []
    several = images if isinstance(images, (list, tuple)) else [images]
    return [each if isinstance(each, PreparedImage) else pixels_of(each) for each in several]


def sound_of(given: Mapping[str, Any]) -> list[GivenSound]:
    """The windows in {"audio": one or a list}. Raises `RequestError` for anything else."""
    if len(given) > 1:
        raise RequestError(f"{FIELD}: 'audio' cannot be combined with {', '.join(set(given) - {'audio'})}", FIELD)
    windows = given["audio"]
    return [window_of(each) for each in (windows if isinstance(windows, list) else [windows])]
