"""`MediaSource`: where a request says that an image or a sound is."""

from dataclasses import dataclass
from typing import Final

from jaxllm.errors import quoted
from jaxllm.serving.media.errors import MediaError

MOST_UUID: Final = 256
"""Characters."""


@dataclass(frozen=True)
class MediaSource:
    """A URL, a uuid of what was sent before, or both; `subject` is what errors call it."""

    url: str | None
    uuid: str | None = None
    subject: str = "image"

    def __post_init__(self) -> None:
        """Raises `MediaError` for neither, and for too long a uuid."""
        if self.url is None and self.uuid is None:
            raise MediaError(f"{self.subject}: give a url, or the uuid of what was sent before")
        if self.uuid is not None and not 0 < len(self.uuid) <= MOST_UUID:
            raise MediaError(f"uuid={quoted(self.uuid)}: expected 1 to {MOST_UUID} characters", "uuid")

    @property
    def gone(self) -> MediaError:
        """The error for a uuid of what is not kept."""
        return MediaError(f"no {self.subject} with uuid={quoted(self.uuid)} is kept any more: send it again", "uuid")
