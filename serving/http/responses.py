"""Responses that are not streams: any body as JSON, and the body of every error."""

import msgspec
from starlette.responses import Response

from jaxllm.serving.http.body.base import Answer


class ErrorDetails(Answer, kw_only=True):
    """The error."""

    message: str
    """Says what was given, what is allowed, and what to do."""
    type: str
    """invalid_request_error: the request is wrong. server_error: the server cannot answer it now."""
    param: str | None
    """The field that is wrong, such as messages[0].role."""
    code: str | None
    """The kind of error, for programs."""


class ErrorResponse(Answer, kw_only=True):
    """An error."""

    error: ErrorDetails


def json_response(answer: Answer) -> Response:
    """A response with a JSON body."""
    return Response(msgspec.json.encode(answer), media_type="application/json")
