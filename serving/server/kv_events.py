"""Where the engines publish the events of their prefix caches."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from jaxllm.config.engine_info import KVEventSource
from jaxllm.serving.http.state import server_of
from jaxllm.serving.ipc.client.group import EngineGroup

KVEventSources = dict[str, dict[str, str | int | bool | None]]
"""By rank: what vLLM tells of each engine's publisher."""


async def kv_event_sources(request: Request) -> Response:
    """Tell where each engine publishes its events, by its rank; nothing where they do not."""
    sources = sources_of(server_of(request).llm.engines)
    return Response(msgspec.json.encode(sources), media_type="application/json")


def sources_of(engines: EngineGroup) -> KVEventSources:
    """The publishers of the engines that there are."""
    found = (engine.info.kv_events for engine in engines.members.there)
    return {str(source.data_parallel_rank): _told(source) for source in found if source is not None}


def _told(source: KVEventSource) -> dict[str, str | int | bool | None]:
    plain: dict[str, str | int | bool | None] = msgspec.to_builtins(source)
    return {"enable_kv_cache_events": True, "publisher": "zmq", **plain}
