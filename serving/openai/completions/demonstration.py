"""`/generate` of vLLM's demonstration server: a prompt in, whole texts out.

A stream has a line of JSON for each step, which holds the texts from their beginning.
"""

from collections.abc import Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from jaxllm.errors import RequestError
from jaxllm.serving.http.error_form import OPENAI_ERRORS
from jaxllm.serving.http.errors import describe
from jaxllm.serving.http.identity import identify
from jaxllm.serving.http.state import server_of
from jaxllm.serving.http.submission import respond
from jaxllm.serving.openai.completions.routes import prepare_completions
from jaxllm.serving.openai.protocol.demonstration import GeneratedTexts, GenerateRequest
from jaxllm.serving.text.outputs import RequestOutput

_MOST_CHARACTERS = 2**20
"""Characters of all prompts in a response; every line of a stream has them again."""
_MOST_IN_STREAM = 16
"""Texts in a line."""


async def generate(request: Request) -> Response:
    """Continue a prompt, and return it with its continuations."""
    server = server_of(request)
    server.check_accepting()
    body = await server.bodies.read(request, GenerateRequest)
    _check(body)
    identity = identify(request, server, body, "generate")
    requests = await prepare_completions(request, server, body, [body.prompt], identity.engine_ids)
    writer = _TextsWriter(body.prompt, body.n or 1)
    return await respond(
        request, server, requests, writer, last=b"", failure=_failure, media_type="application/x-ndjson"
    )


def _check(body: GenerateRequest) -> None:
    """Raise `RequestError` for more text than the event loop can write without holding up the other requests."""
    n = body.n or 1
    if body.stream and n > _MOST_IN_STREAM:
        raise RequestError(f"n={n}: a stream of whole texts allows at most {_MOST_IN_STREAM}; see /v1/completions", "n")
    if n * len(body.prompt) > _MOST_CHARACTERS:
        raise RequestError(
            f"n={n}: every text begins with the prompt ({len(body.prompt)} characters), and these copies may have at "
            f"most {_MOST_CHARACTERS} characters; see /v1/completions",
            "n",
        )


def _failure(error: Exception, request_id: str) -> bytes:
    """An error in a stream that has begun, as its last line."""
    return msgspec.json.encode(OPENAI_ERRORS.answer(describe(error, request_id), request_id)) + b"\n"


class _TextsWriter:
    """Writes all texts from their beginning each time, as that server does."""

    texts = None

    def __init__(self, prompt: str, n: int) -> None:
        self._prompt = prompt
        self._texts = [prompt] * n

    def whole(self, outputs: Sequence[RequestOutput]) -> GeneratedTexts:
        """The response."""
        (output,) = outputs
        return GeneratedTexts(text=[self._prompt + completion.text for completion in output.outputs])

    def write(self, prompt_index: int, output: RequestOutput) -> bytes:
        """A line of the texts so far."""
        del prompt_index
        for completion in output.outputs:
            self._texts[completion.index] += completion.text
        return msgspec.json.encode(GeneratedTexts(text=self._texts)) + b"\n"

    def end(self) -> bytes:
        """Nothing: the last line has all."""
        return b""
