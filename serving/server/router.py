"""The operations of the server itself."""

from jaxllm.serving.http.operation import Operation, make_router
from jaxllm.serving.server import answers, routes, scaling, sleep
from jaxllm.serving.server.invocations import invoke

OPERATIONS = (
    Operation(path="/health", handler=routes.health, tag="Operation", public=True),
    Operation(path="/live", handler=routes.live, tag="Operation", public=True),
    Operation(path="/ready", handler=routes.ready, tag="Operation", public=True),
    Operation(path="/ping", methods=("GET", "POST"), handler=routes.ping, tag="Operation", public=True),
    Operation(path="/metrics", handler=routes.metrics, tag="Operation", content_type="text/plain", public=True),
    Operation(path="/version", handler=routes.version, tag="Operation", response=answers.Version),
    Operation(path="/load", handler=routes.load, tag="Operation", response=answers.Load),
    Operation(path="/invocations", methods=("POST",), handler=invoke, tag="Operation", refusable=True),
    Operation(
        path="/reset_prefix_cache",
        methods=("POST",),
        handler=routes.reset_prefix_cache,
        tag="Operation",
        response=answers.CacheReset,
    ),
    Operation(path="/scale", handler=scaling.show_scale, tag="Operation", response=scaling.ScaleAnswer),
    Operation(
        path="/scale",
        methods=("POST",),
        handler=scaling.scale,
        tag="Operation",
        request=scaling.ScaleRequest,
        response=scaling.ScaleAnswer,
    ),
    Operation(
        path="/scale_elastic_ep",
        methods=("POST",),
        handler=scaling.scale_elastic_ep,
        tag="Operation",
        request=scaling.ScaleRequest,
        response=scaling.ScaledMessage,
    ),
    Operation(
        path="/is_scaling_elastic_ep",
        methods=("GET", "POST"),
        handler=scaling.is_scaling,
        tag="Operation",
        response=scaling.IsScaling,
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
    Operation(
        path="/sleep",
        methods=("POST",),
        handler=sleep.sleep,
        tag="Operation",
        refusable=True,
    ),
    Operation(
        path="/wake_up",
        methods=("POST",),
        handler=sleep.wake_up,
        tag="Operation",
        refusable=True,
    ),
    Operation(
        path="/is_sleeping",
        handler=sleep.is_sleeping,
        tag="Operation",
        response=sleep.IsSleeping,
    ),
    Operation(
        path="/pause",
        methods=("POST",),
        handler=sleep.pause,
        tag="Operation",
        response=sleep.Status,
        refusable=True,
    ),
    Operation(
        path="/resume",
        methods=("POST",),
        handler=sleep.resume,
        tag="Operation",
        response=sleep.Status,
    ),
    Operation(
        path="/is_paused",
        handler=sleep.is_paused,
        tag="Operation",
        response=sleep.IsPaused,
    ),
    Operation(
        path="/update_weights",
        methods=("POST",),
        handler=sleep.update_weights,
        tag="Operation",
        request=sleep.UpdateRequest,
        response=sleep.Updated,
        parts=(sleep.UpdateInfo,),
    ),
)

router = make_router(OPERATIONS)
