"""Routes that change how many engines there are, in vLLM's shapes, and tell how far that is."""

from typing import Annotated

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from jaxllm.errors import RequestError
from jaxllm.serving.http.body.base import Answer, Body
from jaxllm.serving.http.responses import json_response
from jaxllm.serving.http.state import ServerState, server_of
from jaxllm.serving.ipc.client.scaling import PARAMETER


class ScaleRequest(Body, kw_only=True):
    """How many engines there shall be."""

    new_data_parallel_size: int
    """1 to 64; what is beyond the devices at hand is rejected."""
    drain_timeout: Annotated[int, msgspec.Meta(ge=1, le=86400)] = 120
    """Seconds that requests have to finish on engines that are to end. When they take longer, nothing changes."""


class EngineAnswer(Answer, kw_only=True):
    """One engine, as this API server sees it."""

    data_parallel_rank: int
    state: str
    """`up`, `draining` (finishes what it has, then ends), `starting` (again, after its end) or `gone`."""
    requests: int
    """Requests in flight in this API server."""


class ScaleAnswer(Answer, kw_only=True):
    """How many engines there are."""

    data_parallel_size: int
    target: int | None
    """How many there will be; null: nothing is being changed."""
    engines: list[EngineAnswer]


class ScaledMessage(Answer, kw_only=True):
    """The event, in words."""

    message: str


class IsScaling(Answer, kw_only=True):
    """Whether the number of engines is being changed."""

    is_scaling_elastic_ep: bool


async def _scale(request: Request) -> ServerState:
    server = server_of(request)
    server.check_accepting()
    parallel = server.llm.config.parallel
    if parallel.data_parallel_external_lb or parallel.data_parallel_hybrid_lb:
        raise RequestError("this server is behind a load balancer: start another server, or stop this one", PARAMETER)
    body = await server.bodies.read(request, ScaleRequest)
    await server.llm.engines.scaling.scale(body.new_data_parallel_size, body.drain_timeout)
    return server


async def scale(request: Request) -> Response:
    """Add engines, or end those with the highest numbers; answers when that is done. No request is dropped."""
    return _answer(await _scale(request))


async def scale_elastic_ep(request: Request) -> Response:
    """Do what /scale does, under vLLM's name and with its answer."""
    size = (await _scale(request)).llm.engines.members.size
    return json_response(ScaledMessage(message=f"Scaled to {size} data parallel engines"))


async def show_scale(request: Request) -> Response:
    """Tell how many engines there are, what each does, and how many there will be."""
    return _answer(server_of(request))


async def is_scaling(request: Request) -> Response:
    """Tell whether the number of engines is being changed."""
    scaling = server_of(request).llm.engines.scaling
    return json_response(IsScaling(is_scaling_elastic_ep=scaling.target is not None))


def _answer(server: ServerState) -> Response:
    engines = server.llm.engines
    members = engines.members
    found = [
        EngineAnswer(
            data_parallel_rank=engine.number,
            state="draining" if engine.number >= members.size else engine.health.state,
            requests=len(engine),
        )
        for engine in members.all
    ]
    return json_response(ScaleAnswer(data_parallel_size=members.size, target=engines.scaling.target, engines=found))
