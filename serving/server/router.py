"""The operations of the server itself."""

from jaxllm.serving.http.operation import Operation, make_router
from jaxllm.serving.server import answers, routes

OPERATIONS = (
    Operation(path="/health", handler=routes.health, tag="Operation", public=True),
    Operation(path="/ready", handler=routes.ready, tag="Operation", public=True),
    Operation(path="/ping", methods=("GET", "POST"), handler=routes.ping, tag="Operation", public=True),
    Operation(path="/metrics", handler=routes.metrics, tag="Operation", content_type="text/plain", public=True),
    Operation(path="/version", handler=routes.version, tag="Operation", response=answers.Version),
    Operation(path="/load", handler=routes.load, tag="Operation", response=answers.Load),
    Operation(
        path="/reset_prefix_cache",
        methods=("POST",),
        handler=routes.reset_prefix_cache,
        tag="Operation",
        response=answers.CacheReset,
    ),
    Operation(
        path="/start_profile",
        methods=("POST",),
        handler=routes.start_profile,
        tag="Operation",
        response=answers.Profile,
        refusable=True,
    ),
    Operation(
        path="/stop_profile",
        methods=("POST",),
        handler=routes.stop_profile,
        tag="Operation",
        response=answers.Profile,
        refusable=True,
    ),
)

router = make_router(OPERATIONS)
