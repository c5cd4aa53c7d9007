"""The lines of batches, in OpenAI's format (https://platform.openai.com/docs/guides/batch)."""

from typing import Any, Literal

import msgspec

from jaxllm.errors import RequestError, nearest, quoted


class BatchRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A line of the input: one request. `custom_id` is how its answer is known."""

    custom_id: str
    method: Literal["POST"]
    url: str
    body: msgspec.Raw


class BatchResponse(msgspec.Struct):
    """The answer that a server would have given."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class BatchError(msgspec.Struct):
    """Why there is no response."""

    code: str
    message: str


class BatchAnswer(msgspec.Struct):
    """A line of the output."""

    id: str
    custom_id: str
    response: BatchResponse | None
    error: BatchError | None


class _Body(msgspec.Struct):
    """Fields of a body that must be known before it is sent."""

    stream: bool | None = None


_decoder = msgspec.json.Decoder(BatchRequest)
_body_decoder = msgspec.json.Decoder(_Body)


def decode(line: bytes, urls: tuple[str, ...]) -> BatchRequest:
    """A request from a line, to one of `urls`. Raises `RequestError`.

    Whether the body makes sense is for its route to find: a wrong one has an answer with an error.
    """
    try:
        request = _decoder.decode(line)
        body = _body_decoder.decode(request.body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(_explain(line, error)) from None
    except RecursionError:
        raise RequestError("nested too deeply") from None
    if not request.custom_id:
        raise RequestError("custom_id is empty", "custom_id")
    if request.url not in urls:
        raise RequestError(
            f"url {quoted(request.url)}: must be one of {', '.join(urls)}{nearest(request.url, urls)}", "url"
        )
    if body.stream:
        raise RequestError("body.stream: batch responses cannot be streamed", "stream")
    return request


def _explain(line: bytes, error: Exception) -> str:
    """In msgspec's words, or better ones."""
    try:
        value: Any = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as reason:
        return f"not valid JSON: {reason}"
    except RecursionError:
        return "nested too deeply"
    if not isinstance(value, dict):
        return f"expected a JSON object, got {type(value).__name__}"
    if "body" in value and not isinstance(value["body"], dict):
        return "body: expected a JSON object"
    if "method" in value and value["method"] != "POST":
        return f"method {quoted(value['method'])}: must be 'POST'"
    return str(error)
