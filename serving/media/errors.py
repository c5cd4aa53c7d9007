"""Errors of one image of a request."""

from jaxllm.errors import RequestError


class MediaError(RequestError):
    """An image of a request cannot be used; `parameter` is the field that gave it."""

    def __init__(self, message: str, parameter: str | None = "image_url") -> None:
        super().__init__(message, parameter)


class MediaFetchError(MediaError):
    """An image could not be fetched, or may not be."""


class MediaTooLargeError(MediaError):
    """An image has more bytes or pixels than allowed."""


class MediaDecodeError(MediaError):
    """Bytes are no image that can be decoded."""
