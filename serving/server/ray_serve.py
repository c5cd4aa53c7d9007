"""The server as an application of Ray Serve: `serve run jaxllm.serving.server.ray_serve:build model=demo`.

Ray Serve starts replicas, each with an engine of its own, and shares requests out among them.
"""

from collections.abc import Mapping
from typing import Any

import yaml
from ray import serve

from jaxllm.flags import engine_flags
from jaxllm.serving.ipc.client.on_ray.actor import prepare_environment
from jaxllm.serving.ipc.client.on_ray.cluster import actor_options, connect, resources_of
from jaxllm.serving.options.server import server_flags
from jaxllm.serving.server.asgi import AsgiServer

_ONGOING = 1024
"""Requests that a replica takes: how many run at a time, and how many wait, is its engine's to say."""


@serve.deployment(max_ongoing_requests=_ONGOING)
@serve.ingress()
class OpenAI:
    """A replica. What it answers is what `jaxllm serve` answers."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Options as those of `build`."""
        prepare_environment()
        self._server = AsgiServer(**options)

    def __serve_build_asgi_app__(self) -> AsgiServer:
        """The deployment that answers. Its engine starts before the replica takes requests, and ends with it."""
        return self._server

    def check_health(self) -> None:
        """Raise the error with which the last engine has ended: Ray Serve starts another replica then."""
        loss = self._server.llm.loss
        if loss.done():
            raise loss.result()


def build(arguments: Mapping[str, Any]) -> serve.Application:
    """The application of options of the engine and of the server by name, as values or as text.

    A replica asks Ray for the devices of an engine, as `ray_resources` or `tensor_parallel_size` say. Raises
    `ConfigError`.
    """
    options = {"max_stored_responses": 0, "max_stored_files": 0, **read_options(arguments)}
    resources = resources_of(AsgiServer(**options).config, connect())
    # The decorators have made a deployment of the class, which type checkers do not see.
    deployment: Any = OpenAI
    return deployment.options(ray_actor_options=actor_options(resources)).bind(options)


def read_options(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Options. Those that are text, as on the command line of `serve run`, are read as YAML."""
    kinds = {flag.name: flag.kind for flag in (*engine_flags(), *server_flags())}
    found: dict[str, Any] = {}
    for name, value in arguments.items():
        read = yaml.safe_load(value) if isinstance(value, str) and kinds.get(name) is not str else value
        if kinds.get(name) is tuple:
            read = (read,) if isinstance(read, str) else tuple(read)
        found[name] = read
    return found
