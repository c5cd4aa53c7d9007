"""Errors as Anthropic's clients expect them."""

import msgspec

from jaxllm.serving.anthropic.answers import MessagesError, MessagesErrorDetails
from jaxllm.serving.http.error_response import ErrorDetails

PATHS = "/v1/messages"
"""Beneath this path all errors have this form."""
REQUEST_ID = "request-id"
"""The header in which Anthropic's clients look for the request's id."""

OVERLOADED = 529
"""Anthropic's status for too many requests at once."""
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    OVERLOADED: "overloaded_error",
}


def status_of(status: int, details: ErrorDetails) -> int:
    """The status for an error that has `status` with OpenAI's interface."""
    return OVERLOADED if details.code == "queue_full" else status


def error_answer(status: int, details: ErrorDetails, request_id: str) -> MessagesError:
    """The body of an error that has `status` with OpenAI's interface."""
    status = status_of(status, details)
    kind = _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return MessagesError(error=MessagesErrorDetails(type=kind, message=details.message), request_id=request_id)


def error_event(status: int, details: ErrorDetails, request_id: str) -> bytes:
    """The error as an event of a stream that has begun."""
    return b"event: error\ndata: " + msgspec.json.encode(error_answer(status, details, request_id)) + b"\n\n"
