"""From prepared requests to responses: what chats and completions have in common."""

import logging
import re
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from jaxllm.errors import RequestError, quoted
from jaxllm.requests.owners import Owner
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.serving.http.body.base import Answer
from jaxllm.serving.http.errors import unknown_model
from jaxllm.serving.http.load_report import load_headers
from jaxllm.serving.http.middleware.access_log import ENGINE_REQUESTS
from jaxllm.serving.http.state import ServerState
from jaxllm.serving.http.stream import EventStream, EventWriter, unless_gone
from jaxllm.serving.llm.output_stream import OutputStream
from jaxllm.serving.tenancy.access import owner_of
from jaxllm.serving.tenancy.quotas import reserve
from jaxllm.serving.text.input_processor import TextRequest
from jaxllm.serving.text.outputs import RequestOutput

logger = logging.getLogger(__name__)

ENGINE_HEADER = "X-data-parallel-rank"

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,256}")


@dataclass(frozen=True)
class Identity:
    """Who a response is: `id`, and the `engine_ids` of the requests behind it, which no other request has."""

    id: str
    engine_ids: list[str]
    created: int
    model: str


class Named(Protocol):
    """A body that says whom it asks, and may name itself."""

    model: str | None
    request_id: str | None


class Loggable(Protocol):
    """What is logged of a request."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]

    @property
    def params(self) -> Any:
        """What it asks for."""


class Writer(EventWriter, Protocol):
    """Writes results, whole or as events."""

    def whole(self, outputs: Sequence[RequestOutput]) -> Answer:
        """The body of a response that is not a stream, from the result of each prompt."""


def identify(request: Request, server: ServerState, body: Named, prefix: str, num_prompts: int = 1) -> Identity:
    """Ids for a response and its requests. Raises errors about the model's name and the request's id."""
    if body.request_id is not None and not _REQUEST_ID.fullmatch(body.request_id):
        raise RequestError("request_id: must be 1 to 256 visible ASCII characters", "request_id")
    name = f"{prefix}-{body.request_id or request.scope['request_id']}"
    # Clients may use an id twice at the same time; the engine must not notice.
    unique = f"{name}-{uuid.uuid4().hex[:8]}"
    engine_ids = [unique] if num_prompts == 1 else [f"{unique}-{index}" for index in range(num_prompts)]
    return Identity(name, engine_ids, int(time.time()), model_name(server, body.model))


def client_visible_ids(engine_id: str) -> tuple[str, ...]:
    """What clients may call a request of the engine: the `id` of its answer, and that without its prefix."""
    name = re.sub(r"-[0-9a-f]{8}(-\d+)?$", "", engine_id)
    return name, name.partition("-")[2]


def num_http_requests(server: ServerState) -> int:
    """Requests of clients that engines work on: one of several prompts is one."""
    return len({re.sub(r"(-[0-9a-f]{8})-\d+$", r"\1", engine_id) for engine_id in server.llm.engines.request_ids})


def model_name(server: ServerState, asked: str | None) -> str:
    """The name to answer with. Raises an error of status 404 for one that is not served."""
    if asked is None:
        return server.model_names[0]
    if asked not in server.model_names:
        raise unknown_model(asked, server.model_names)
    return asked


async def try_grammar(request: Request, server: ServerState, params: SamplingParams) -> None:
    """Have the grammar that is asked for tried, if it is a new one; that ends when the client leaves."""
    await unless_gone(request.receive, server.llm.try_grammar(params, owner_of(request)))


def submit(request: Request, server: ServerState, requests: Sequence[TextRequest]) -> list[OutputStream]:
    """Send requests to the engine, and log them if that is asked for. Raises `QueueFullError` and `EngineError`."""
    if server.options.enable_log_requests:
        log_requests(requests, request.scope["request_id"], server.options.max_log_len)
    request.scope[ENGINE_REQUESTS] = requests
    engine = requested_rank(request)
    with owned(request, server, requests) as owner:
        if server.options.isolate_prefix_cache:
            for child in (child for each in requests for child in each.children):
                # No name of an owner has a line break.
                child.cache_salt = f"{owner.name}\n{child.cache_salt or ''}"
        return server.llm.submit(requests, engine)


def requested_rank(request: Request) -> int | None:
    """The number of the engine that shall answer, from the header that vLLM has for it. Raises `RequestError`."""
    asked = request.headers.get(ENGINE_HEADER)
    if asked is None:
        return None
    if not asked.isdecimal() or len(asked) > 4:
        raise RequestError(f"{ENGINE_HEADER}: expected the number of an engine, got {quoted(asked)}", ENGINE_HEADER)
    return int(asked)


@contextmanager
def owned(request: Request, server: ServerState, requests: Sequence[Any]) -> Iterator[Owner]:
    """Give prepared requests to the owner of the HTTP request, and reserve of its quota what they may use.

    That is given back if the requests are not taken. Raises `QuotaError`.
    """
    owner = owner_of(request)
    for each in requests:
        for child in each.children:
            child.owner = owner
    account = server.access.account(owner)
    if account is not None:
        reserve(account, requests, server.limits.max_model_len)
    try:
        yield owner
    except Exception:
        for each in requests:
            if each.reservation is not None:
                each.reservation.cancel()
        raise


async def respond(
    request: Request, server: ServerState, requests: Sequence[TextRequest], writer: Writer, **framing: Any
) -> Response:
    """Generate, and answer as a stream or at once. Raises `QueueFullError` and `EngineError`.

    `framing` is what `EventStream` is to know beside the writer.
    """
    streams = submit(request, server, requests)
    if requests[0].stream:
        # Middleware of the operator's may want to see or change what is sent.
        direct = not server.options.middleware
        framing |= {"direct": direct, "keep_alive": server.options.sse_keep_alive_interval}
        response: Response = EventStream(streams, writer, request.scope["request_id"], **framing)
        response.headers.update(load_headers(request, server.llm.state()))
        return response
    try:
        outputs = await unless_gone(request.receive, _results(streams))
    finally:
        for stream in streams:
            stream.close()
    response = json_response(writer.whole(outputs))
    response.headers.update(load_headers(request, server.llm.state()))
    return response


async def _results(streams: Sequence[OutputStream]) -> list[RequestOutput]:
    # One after the other: each is one result, which waits for its reader.
    return [await anext(stream) for stream in streams]


def json_response(answer: Answer) -> Response:
    """A response with a JSON body."""
    return Response(msgspec.json.encode(answer), media_type="application/json")


@contextmanager
def calling(**names: str) -> Iterator[None]:
    """Name the fields of errors raised inside as the request does: `calling(prompt="messages")`."""
    try:
        yield
    except RequestError as error:
        if error.parameter in names:
            error.parameter = names[error.parameter]
        raise


def log_requests(requests: Sequence[Loggable], request_id: str, longest: int | None) -> None:
    """Write a line about each request, with at most `longest` characters of its prompt."""
    for request in requests:
        prompt = request.prompt if request.prompt is not None else str(request.prompt_token_ids)
        logger.info(
            "request %s: %d prompt tokens, %s, prompt: %r",
            request.request_id,
            len(request.prompt_token_ids),
            request.params,
            prompt[:longest],
            extra={"request_id": request_id},
        )
