"""For those who run the server: let it pause and sleep, and give it other weights. With --server-dev-mode only."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from jaxllm.errors import RequestError, quoted
from jaxllm.serving.http.body.base import Answer, Body
from jaxllm.serving.http.errors import not_enabled
from jaxllm.serving.http.identity import client_visible_ids
from jaxllm.serving.http.responses import json_response
from jaxllm.serving.http.state import server_of
from jaxllm.serving.llm.async_llm import AsyncLLM

_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


class IsSleeping(Answer, kw_only=True):
    """Whether anything of the engine sleeps."""

    is_sleeping: bool


class IsPaused(Answer, kw_only=True):
    """Whether the engine is paused."""

    is_paused: bool


class WorldSize(Answer, kw_only=True):
    """How many devices compute."""

    world_size: int


class Status(Answer, kw_only=True):
    """What was done."""

    status: str


class AbortRequest(Body, kw_only=True):
    """Which requests end."""

    request_ids: list[str] | None = None
    """As answers have them in `id`, or as `request_id` named them; null, or none: all."""


class Aborted(Answer, kw_only=True):
    """Requests were ended."""

    status: str
    aborted: int
    """How many prompts."""


class UpdateInfo(Body, kw_only=True):
    """Where the weights are."""

    path: str
    """A folder with a checkpoint, as the server sees it."""


class UpdateRequest(Body, kw_only=True):
    """New weights."""

    update_info: UpdateInfo


class Updated(Answer, kw_only=True):
    """The weights were replaced."""

    message: str
    weights_version: int
    """How often that was done so far."""


async def sleep(request: Request) -> Response:
    """Free the device memory: level 1 (default) keeps the weights on the host, level 2 drops them, 0 only pauses.

    `mode` says what becomes of requests: abort (default), wait or keep. Those that come meanwhile wait.
    """
    llm = _llm(request)
    level = request.query_params.get("level", "1")
    if level not in ("0", "1", "2"):
        raise RequestError(f"level={quoted(level)}: must be 0, 1 or 2", "level")
    mode: Any = request.query_params.get("mode", "abort")
    await llm.sleep(int(level), mode)
    return Response()


async def wake_up(request: Request) -> Response:
    """Bring back what sleeps: all, or what `tags` name, each weights or kv_cache."""
    await _llm(request).wake_up(request.query_params.getlist("tags") or None)
    return Response()


async def is_sleeping(request: Request) -> Response:
    """Tell whether anything sleeps."""
    return json_response(IsSleeping(is_sleeping=await _llm(request).is_sleeping()))


async def pause(request: Request) -> Response:
    """Compute nothing more until /resume.

    `mode` says what becomes of requests: they end (abort, default), finish first (wait), or go on later (keep).
    """
    llm, query = _llm(request), request.query_params
    mode: Any = query.get("mode", "abort")
    await llm.pause_generation(
        mode=mode,
        wait_for_inflight_requests=_boolean(request, "wait_for_inflight_requests", default=False),
        clear_cache=_boolean(request, "clear_cache", default=True),
    )
    return json_response(Status(status="paused"))


async def resume(request: Request) -> Response:
    """Go on after /pause."""
    await _llm(request).resume_generation()
    return json_response(Status(status="resumed"))


async def is_paused(request: Request) -> Response:
    """Tell whether the engine is paused."""
    return json_response(IsPaused(is_paused=await _llm(request).is_paused()))


async def get_world_size(request: Request) -> Response:
    """Tell how many devices the engines have, or one of them with `include_dp=false`."""
    llm = _llm(request)
    engines = llm.config.parallel.data_parallel_size if _boolean(request, "include_dp", default=True) else 1
    return json_response(WorldSize(world_size=llm.info.num_devices * engines))


async def abort_requests(request: Request) -> Response:
    """End requests with what there is of them: those that are named, or all of this API server."""
    llm = _llm(request)
    body = await server_of(request).bodies.read(request, AbortRequest)
    found = llm.engines.request_ids
    if body.request_ids:
        asked = set(body.request_ids)
        found = [name for name in found if not asked.isdisjoint(client_visible_ids(name))]
    llm.abort(found)
    return json_response(Aborted(status="aborted", aborted=len(found)))


async def update_weights(request: Request) -> Response:
    """Replace all weights by those of a checkpoint in a folder of the server. Requests that run go on with them."""
    llm = _llm(request)
    body = await server_of(request).bodies.read(request, UpdateRequest)
    version = await llm.update_weights(body.update_info.path)
    return json_response(Updated(message="Weights updated", weights_version=version))


def _llm(request: Request) -> AsyncLLM:
    server = server_of(request)
    if not server.options.server_dev_mode:
        raise not_enabled(request.url.path, "--server-dev-mode")
    return server.llm


def _boolean(request: Request, name: str, *, default: bool) -> bool:
    text = request.query_params.get(name)
    if text is None:
        return default
    if text.lower() not in _BOOLEANS:
        raise RequestError(f"{name}={quoted(text)}: must be true or false", name)
    return _BOOLEANS[text.lower()]
