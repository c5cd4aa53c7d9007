"""The forms of errors: what an interface writes of one, as a response or as an event of a stream."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import msgspec

from jaxllm.serving.http.body.base import Answer
from jaxllm.serving.http.errors import DOCUMENTED, HttpError, describe
from jaxllm.serving.http.responses import ErrorResponse


class ErrorForm(ABC):
    """How one interface writes errors. `body` is the type of what it writes, `documented` has the statuses it uses."""

    body: ClassVar[type[Answer]]
    documented: ClassVar[Mapping[int, str]] = DOCUMENTED

    @abstractmethod
    def answer(self, error: HttpError, request_id: str) -> Answer:
        """The body of the response."""

    def status(self, error: HttpError) -> int:
        """The status of the response."""
        return error.status

    def headers(self, error: HttpError, request_id: str) -> dict[str, str]:
        """The headers of the response."""
        del request_id
        return error.headers

    def event(self, error: HttpError, request_id: str) -> bytes:
        """The error in a stream that has begun."""
        return b"data: " + msgspec.json.encode(self.answer(error, request_id)) + b"\n\n"


class OpenAIErrors(ErrorForm):
    """OpenAI's form, which is that of all operations that name no other."""

    body = ErrorResponse

    def answer(self, error: HttpError, request_id: str) -> ErrorResponse:
        """The details alone."""
        del request_id
        return ErrorResponse(error=error.details)


OPENAI_ERRORS = OpenAIErrors()


def event_of(error: Exception, request_id: str) -> bytes:
    """An exception as an event of a stream that has begun, in OpenAI's form."""
    return OPENAI_ERRORS.event(describe(error, request_id), request_id)
