"""For those who run the server: is it alive, is it ready, what does it do."""

import asyncio
from functools import partial

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from jaxllm.errors import EngineError
from jaxllm.serving.http import errors
from jaxllm.serving.http.identity import num_http_requests
from jaxllm.serving.http.responses import json_response
from jaxllm.serving.http.state import ServerState, server_of
from jaxllm.serving.server.answers import CacheReset, Draining, Halted, Load, Profile, Version
from jaxllm.serving.telemetry.metrics import ProcessMeasured
from jaxllm.serving.telemetry.shared_metrics import Published
from jaxllm.version import __version__


async def health(request: Request) -> Response:
    """Say with status 200 that the engine is alive; one that is dead, hangs or needs other weights has status 503.

    The body is empty, unless the engine sleeps or is paused, or a kernel failed its self-test and a slower one serves.
    """
    llm = server_of(request).llm
    llm.check_health()
    info, state = llm.info, llm.state()
    if state.halted:
        return json_response(Halted(sleep_level=state.sleep_level, is_paused=state.is_paused, reason=state.halted))
    if not info.problems:
        return Response()
    fields = {
        f"{operation}_{field}": value
        for operation, choice in info.kernels.items()
        for field, value in (("backend", choice.name), ("problem", choice.problem))
    }
    return JSONResponse(fields)


async def live(_: Request) -> Response:
    """Say with status 200 that this process answers, whatever the engine does: for a liveness probe.

    An engine that ends is restarted by the server, which itself ends once that is of no use. Whoever restarts it
    earlier, because of /health, restarts the good with the bad.
    """
    return Response()


async def ping(request: Request) -> Response:
    """Say what /health says, under the name that some platforms ask for."""
    return await health(request)


async def ready(request: Request) -> Response:
    """Say with status 200 that requests are computed; status 503 while it sleeps, is paused or shuts down."""
    server = server_of(request)
    server.check_accepting()
    server.llm.check_health()
    # Whether any engine has the right weights is known by now.
    if why := replace(server.llm.state(), weights_problem="").halted:
        raise EngineError(why)
    return Response()


async def version(_: Request) -> Response:
    """Tell the server's version."""
    return json_response(Version(version=__version__))


async def load(request: Request) -> Response:
    """Tell how many requests of clients are in flight; one of several prompts counts once."""
    server = server_of(request)
    others = [] if server.shared_metrics is None else server.shared_metrics.others()
    return json_response(Load(server_load=num_http_requests(server) + sum(each.load for each in others)))


async def metrics(request: Request) -> Response:
    """Metrics for Prometheus."""
    server = server_of(request)
    own = None
    server.metrics.set_without_engine(server.llm.engines.num_without_engine())
    if server.shared_metrics is not None:
        # What is shown is published first: if this process dies, no counter goes back after it.
        own = server.metrics.measured()
        server.shared_metrics.publish(Published(num_http_requests(server), own))
    # In a thread: writing them takes milliseconds, which no stream should wait for.
    work = partial(_exposition, server, own, request.headers.get("accept", ""))
    body, content_type = await asyncio.to_thread(work)
    return Response(body, media_type=content_type)


def _exposition(server: ServerState, own: ProcessMeasured | None, accept: str) -> tuple[bytes, str]:
    if server.shared_metrics is None:
        return server.metrics.exposition(accept)
    # Whichever process is asked answers for all; which one it was would make no sense in a series.
    others = [each.measured for each in server.shared_metrics.others()]
    joined = server.metrics.with_others(others, server.shared_metrics.engines(), own)
    return joined.exposition(accept, process=False)


async def reset_prefix_cache(request: Request) -> Response:
    """Forget all cached prefixes; impossible while requests run."""
    if not await server_of(request).llm.reset_prefix_cache():
        raise errors.requests_running()
    return json_response(CacheReset(success=True))


async def drain(request: Request) -> Response:
    """Have the server end well: take nothing new, finish what runs within --shutdown-timeout, exit with 0."""
    server = server_of(request)
    if server.drain is None or not (server.access.needs_key or server.options.server_dev_mode):
        # Anybody could end it.
        raise errors.not_enabled(request.url.path, "--api-key or --server-dev-mode")
    # Of several processes the others hear of it right afterwards.
    server.accepting = False
    server.drain()
    running, seconds = num_http_requests(server), server.options.shutdown_timeout
    return json_response(Draining(status="draining", running=running, shutdown_timeout=seconds))


async def start_profile(request: Request) -> Response:
    """Begin a trace of the device, in the folder that --profiler-dir names."""
    return json_response(Profile(folder=await server_of(request).llm.start_profile()))


async def stop_profile(request: Request) -> Response:
    """Write the trace that was begun; xprof and TensorBoard show it."""
    return json_response(Profile(folder=await server_of(request).llm.stop_profile()))
