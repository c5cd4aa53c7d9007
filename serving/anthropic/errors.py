"""Errors as Anthropic's clients expect them."""

from collections.abc import Mapping
from typing import ClassVar

import msgspec

from jaxllm.serving.anthropic.answers import MessagesError, MessagesErrorDetails
from jaxllm.serving.http.error_form import ErrorForm
from jaxllm.serving.http.errors import DOCUMENTED, HttpError

REQUEST_ID = "request-id"
"""The header in which Anthropic's clients look for the request's id."""

_OVERLOADED = 529
"""Anthropic's status for too many requests at once."""
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    _OVERLOADED: "overloaded_error",
}


class MessagesErrors(ErrorForm):
    """Anthropic's form of errors."""

    body = MessagesError
    documented: ClassVar[Mapping[int, str]] = {
        **DOCUMENTED,
        _OVERLOADED: "Too many requests are waiting; Retry-After says when to try again.",
    }

    def answer(self, error: HttpError, request_id: str) -> MessagesError:
        """The kind of error in Anthropic's words, its message, and the request's id."""
        status = self.status(error)
        kind = _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
        details = MessagesErrorDetails(type=kind, message=error.details.message)
        return MessagesError(error=details, request_id=request_id)

    def status(self, error: HttpError) -> int:
        """OpenAI's status, but for a full queue."""
        return _OVERLOADED if error.details.code == "queue_full" else error.status

    def headers(self, error: HttpError, request_id: str) -> dict[str, str]:
        """With the request's id, where Anthropic's clients look for it."""
        return {**error.headers, REQUEST_ID: request_id}

    def event(self, error: HttpError, request_id: str) -> bytes:
        """An event of the name `error`."""
        return b"event: error\ndata: " + msgspec.json.encode(self.answer(error, request_id)) + b"\n\n"


MESSAGES_ERRORS = MessagesErrors()
