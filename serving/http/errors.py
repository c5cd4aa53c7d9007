"""Errors as HTTP sees them. No other module knows a status code of an error."""

import errno
import logging
import math
import os
import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Final

from starlette.exceptions import HTTPException

from jaxllm.errors import (
    MOST_QUOTED,
    CapacityError,
    EngineError,
    PromptTooLongError,
    QueueFullError,
    QuotaError,
    RequestError,
    RequestFaultError,
    RequestTimeoutError,
    ScalingBusyError,
    ScalingTimeoutError,
    StorageError,
    fault_message,
    nearest,
    quoted,
    shortened,
)
from jaxllm.serving.http.body.base import UnsupportedError
from jaxllm.serving.http.responses import ErrorDetails
from jaxllm.serving.tenancy.quotas import retry_after

logger = logging.getLogger(__name__)

CLIENT_GONE = 499
"""The status that nginx logs for a client that left before the answer; nobody receives it."""
_LATER = (429, 503)
_EXTRA_ARGS = "vllm_xargs"
"""The name of `extra_args` in the interfaces, as in vLLM."""

DOCUMENTED = {
    400: "The request is wrong; param names the field.",
    401: "The key is missing or wrong.",
    403: "The route requires the operator's key.",
    404: "The model or response does not exist.",
    413: "The body is too large.",
    415: "The Content-Type is not JSON.",
    429: "The key has exhausted its quota; Retry-After says when to try again.",
    500: "Internal server error; the server's log has the details.",
    503: "The server is temporarily unavailable; Retry-After says when to try again.",
    504: "The request was not answered within its timeout, or --request-timeout.",
}
"""The errors that every request with a body may get, for the OpenAPI document."""


_WORD = re.compile(rf"\S{{{MOST_QUOTED + 1},}}")
"""Longer than any of ours: what a client has sent, in a message that does not quote it as such."""
_LONGEST_MESSAGE = 1000
"""No message of ours is longer, so it repeats what a client or another library has said."""


class HttpError(Exception):
    """An error that only the HTTP interface knows."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        # Both may quote what a client sent, of whatever length.
        message = _clipped(_WORD.sub(lambda word: shortened(word[0]), message), _LONGEST_MESSAGE)
        param = param and shortened(param)
        super().__init__(message)
        self.status = status
        self.details = ErrorDetails(message=message, type=_type_of(status), param=param, code=code)
        self.headers = dict(headers or {})

    @property
    def rejected(self) -> str | None:
        """Why the request is not taken for now; None where another try would end the same."""
        return self.details.code or "unavailable" if self.status in _LATER else None


class BodyError(RequestError):
    """The body is not what the route expects; `code` says in which way."""

    def __init__(self, message: str, parameter: str | None, code: str) -> None:
        super().__init__(message, parameter)
        self.code = code


def unknown_model(name: str, known: Iterable[str]) -> HttpError:
    """The request names a model that is not served."""
    names = list(known)
    served = ", ".join(f"`{each}`" for each in names)
    message = f"The model `{shortened(name)}` does not exist{nearest(name, names)}; this server has {served}"
    return HttpError(404, message, param="model", code="model_not_found")


def unknown_response(name: str, param: str) -> HttpError:
    """The request names a response that is not stored."""
    message = (
        f"there is no response {quoted(name)}: it was never stored, was deleted, or was evicted for newer ones "
        "(--max-stored-responses, --max-stored-response-bytes)"
    )
    return HttpError(404, message, param=param, code="response_not_found")


def wrong_key(*, given: bool) -> HttpError:
    """The request brings no key, or a wrong one."""
    message = "Incorrect API key provided" if given else "No API key provided"
    return HttpError(
        401,
        f"{message}: send the header 'Authorization: Bearer KEY', or 'x-api-key: KEY', with a key of this server",
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )


def not_operator(path: str) -> HttpError:
    """The key is a client's, and the route is for who runs the server."""
    return HttpError(
        403,
        f"{path} requires the operator's key: one of --api-key if clients have theirs in --api-key-file, one of a "
        "client with 'operator: true' in that file, or the server's only key",
        code="operator_only",
    )


def body_too_large(limit: int, flag: str) -> HttpError:
    """The body has more bytes than the server takes; `flag` sets the limit."""
    message = f"the body is too large: at most {limit} bytes are allowed ({flag})"
    return HttpError(413, message, code="request_too_large")


def not_json(content_type: str) -> HttpError:
    """The body is declared to be something else than JSON."""
    return HttpError(
        415,
        f"Content-Type is {quoted(content_type)}: send JSON with the header 'Content-Type: application/json'",
        code="unsupported_media_type",
    )


def shutting_down() -> HttpError:
    """The server takes nothing new."""
    return HttpError(503, "the server is shutting down", code="shutting_down", headers={"Retry-After": "10"})


def overloaded(reason: str) -> HttpError:
    """The server takes nothing new for a while."""
    return HttpError(503, f"{reason}; try again later", code="overloaded", headers={"Retry-After": "5"})


def wrong_runner(path: str, model: str, found: str, wanted: str) -> HttpError:
    """The route is for models of another kind than this one, which pools, transcribes or generates."""
    match found, wanted:
        case "pooling", _:
            message = "is a pooling model and does not generate text; use /v1/embeddings, /score, /classify or "
            message += "/pooling, or serve a generative model"
        case "transcribe", _:
            message = "makes text of sound, and of nothing else; use /v1/audio/transcriptions"
        case _, "transcribe":
            message = "is a language model and does not hear; serve a model such as Whisper for transcriptions"
        case _:
            message = "is a generative model; start the server with --runner pooling for embeddings"
    return HttpError(400, f"{path}: {model} {message}", code="unsupported_for_model")


def not_enabled(path: str, flag: str) -> HttpError:
    """The route is there only if the server is started with a flag."""
    return HttpError(404, f"{path}: disabled on this server; start it with {flag}", code="not_enabled")


def no_tokenizer() -> HttpError:
    """The request needs text, and the server has only token ids."""
    return HttpError(
        400,
        "this server has no tokenizer (--skip-tokenizer-init): send token IDs to /inference/v1/generate, or restart "
        "it without that flag",
        code="unsupported_for_model",
    )


def requests_running() -> HttpError:
    """The prefix cache is in use."""
    return HttpError(503, "running requests use the prefix cache; try again later", headers={"Retry-After": "1"})


def describe(error: Exception, request_id: str) -> HttpError:
    """Status, body and headers for an exception; what nobody expected is logged under the request's id."""
    match error:
        case HttpError():
            return error
        case RequestFaultError():
            return HttpError(500, str(error), code="internal_error")
        case RequestError():
            return _wrong_request(error)
        case CapacityError():
            return _capacity_error(error)
        case QuotaError():
            headers = {"Retry-After": retry_after(error.retry_after)}
            return HttpError(429, f"{error}: try again later", code="rate_limit_exceeded", headers=headers)
        case RecursionError():
            return HttpError(400, "the body is nested too deeply", code="invalid_json")
        case EngineError(retry_after=float(seconds)):
            headers = {"Retry-After": str(max(1, math.ceil(seconds)))}
            return HttpError(503, str(error), code="engine_unavailable", headers=headers)
        case EngineError():
            return HttpError(503, str(error), code="engine_unavailable")
    disk = disk_problem(error)
    if disk is not None:
        logger.warning("request %s: %s", request_id, disk, extra={"request_id": request_id})
        return HttpError(503, disk, code="storage_unavailable", headers={"Retry-After": "60"})
    logger.error("internal error in request %s", request_id, exc_info=error, extra={"request_id": request_id})
    return HttpError(500, fault_message(request_id), code="internal_error")


_DISK: Final = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE,
     errno.EACCES, errno.EPERM)
)  # fmt: skip
"""The system's errors for a disk that is full, over its quota, broken or not to be written."""


def disk_problem(error: BaseException) -> str | None:
    """The message for an error that comes from the disk, without the file's name; None for any other."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _DISK:
            return f"the server currently cannot read or write files: {os.strerror(cause.errno or 0)}; try again later"
        cause = cause.__cause__
    return None


def _wrong_request(error: RequestError) -> HttpError:
    message, param = str(error), error.parameter
    match error:
        case BodyError():
            code = error.code
        case UnsupportedError():
            code = "unsupported_parameter"
        case PromptTooLongError():
            code = "context_length_exceeded"
        case _:
            code = "invalid_value"
    if param == "extra_args":
        message, param = message.replace(param, _EXTRA_ARGS, 1), _EXTRA_ARGS
    return HttpError(400, message, param=param, code=code)


def _capacity_error(error: CapacityError) -> HttpError:
    match error:
        case QueueFullError():
            headers = {"Retry-After": str(max(1, round(error.retry_after)))}
            return HttpError(503, str(error), code="queue_full", headers=headers)
        case RequestTimeoutError():
            # OpenAI's and Anthropic's clients try again by themselves after a 408 or 5xx, unless this says not to.
            return HttpError(504, str(error), code="request_timeout", headers={"X-Should-Retry": "false"})
        case StorageError():
            return HttpError(400, str(error), code="storage_limit_exceeded")
        case ScalingTimeoutError():
            return HttpError(408, str(error), code="drain_timeout")
        case ScalingBusyError():
            return HttpError(409, str(error), code="scaling")
    return HttpError(503, str(error), code="engine_unavailable")


def routing_error(error: HTTPException, method: str, path: str, *, hint: str, allowed: Iterable[str]) -> HttpError:
    """What the router raises: unknown paths, which get a `hint`, and methods, where others are `allowed`."""
    method, path = shortened(method), shortened(path)
    messages = {
        404: f"unknown URL: {method} {path}{hint}",
        405: f"{method} {path}: this URL does not support the method {method}",
    }
    codes = {404: "unknown_url", 405: "method_not_supported"}
    headers = dict(error.headers or {})
    if error.status_code == 405 and allowed:
        headers["Allow"] = ", ".join(allowed)
    message = messages.get(error.status_code, error.detail or HTTPStatus(error.status_code).phrase)
    return HttpError(error.status_code, message, code=codes.get(error.status_code), headers=headers)


def _clipped(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _type_of(status: int) -> str:
    return "server_error" if status >= 500 else "invalid_request_error"
