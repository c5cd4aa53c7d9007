"""Names of a response and of its requests in the engine, and which model and engine shall answer."""

import re
import time
import uuid
from dataclasses import dataclass
from typing import Protocol

from starlette.requests import Request

from jaxllm.errors import RequestError, quoted
from jaxllm.serving.http.errors import unknown_model
from jaxllm.serving.http.state import ServerState

ADAPTER = "lora_request"
"""Where a request's scope has its adapter."""
ENGINE_HEADER = "X-data-parallel-rank"

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,256}")


@dataclass(frozen=True)
class Identity:
    """Who a response is: `id`, and the `engine_ids` of the requests after it, which no other request has."""

    id: str
    engine_ids: list[str]
    created: int
    model: str


class Named(Protocol):
    """A body that says whom it asks, and may name itself."""

    model: str | None
    request_id: str | None


def identify(request: Request, server: ServerState, body: Named, prefix: str, num_prompts: int = 1) -> Identity:
    """Ids for a response and its requests. Raises errors about the model's name and the request's id."""
    if body.request_id is not None and not _REQUEST_ID.fullmatch(body.request_id):
        raise RequestError("request_id: must be 1 to 256 visible ASCII characters", "request_id")
    name = f"{prefix}-{body.request_id or request.scope['request_id']}"
    # Clients may use an id twice at the same time; the engine must not notice.
    unique = f"{name}-{uuid.uuid4().hex[:8]}"
    engine_ids = [unique] if num_prompts == 1 else [f"{unique}-{index}" for index in range(num_prompts)]
    return Identity(name, engine_ids, int(time.time()), choose_model(request, server, body.model))


def client_visible_ids(engine_id: str) -> tuple[str, ...]:
    """Names by which clients may refer to a request: the `id` of its answer, and that without its prefix."""
    name = re.sub(r"-[0-9a-f]{8}(-\d+)?$", "", engine_id)
    return name, name.partition("-")[2]


def num_http_requests(server: ServerState) -> int:
    """Requests of clients that engines work on: one of several prompts is one."""
    return len({re.sub(r"(-[0-9a-f]{8})-\d+$", r"\1", engine_id) for engine_id in server.llm.engines.request_ids})


def model_name(server: ServerState, asked: str | None) -> str:
    """The name to answer with, of the model or of an adapter. Raises an error of status 404 for one that is unknown."""
    if asked is None:
        return server.model_names[0]
    if asked not in server.model_names and server.adapters.find(asked) is None:
        raise unknown_model(asked, [*server.model_names, *server.adapters.names])
    return asked


def choose_model(request: Request, server: ServerState, asked: str | None) -> str:
    """`model_name`; if it is an adapter's, what the request submits runs with it."""
    name = model_name(server, asked)
    request.scope[ADAPTER] = None if asked is None else server.adapters.find(asked)
    return name


def requested_rank(request: Request) -> int | None:
    """The number of the engine that shall answer, from the header that vLLM has for it. Raises `RequestError`."""
    asked = request.headers.get(ENGINE_HEADER)
    if asked is None:
        return None
    if not asked.isdecimal() or len(asked) > 4:
        raise RequestError(f"{ENGINE_HEADER}: expected the rank of an engine, got {quoted(asked)}", ENGINE_HEADER)
    return int(asked)
