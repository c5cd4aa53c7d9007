"""Errors of one image or sound of a request."""

from jaxllm.errors import RequestError


class MediaError(RequestError):
    """An image or sound of a request cannot be used; `parameter` is the field that gave it."""

    def __init__(self, message: str, parameter: str | None = "image_url") -> None:
        super().__init__(message, parameter)


class MediaFetchError(MediaError):
    """An image or sound could not be fetched, or may not be."""


class MediaTooLargeError(MediaError):
    """A file has more bytes, pixels or seconds than allowed."""


class MediaDecodeError(MediaError):
    """Bytes are no image or sound that can be decoded."""
