"""KubeRay: a RayService, whose replicas are engines that Ray Serve starts and shares requests out among."""

from dataclasses import replace
from typing import Any

from jaxllm.errors import ConfigError
from jaxllm.serving.deploy.container import Object, pod_template
from jaxllm.serving.deploy.documents import to_yaml
from jaxllm.serving.deploy.hardware import slices_of
from jaxllm.serving.deploy.installation import Installation

APPLICATION = "jaxllm.serving.server.ray_serve:build"
RAY_PORT = 8000
"""Where Ray Serve listens, unless told otherwise."""
RAY_VERSION = "2.60.0"
"""The version in the images, and of the extra `ray`."""


def ray_service(installation: Installation) -> Object:
    """The service and its cluster: a head, and a worker for each copy. Raises `ConfigError` for several hosts."""
    if installation.hardware.hosts > 1:
        raise ConfigError("--format ray supports engines on one host only; for several hosts use --format kubernetes")
    if installation.executables is not None:
        raise ConfigError(
            "--format ray does not support --executables, because engines compile once per machine; omit it"
        )
    application = {
        "name": installation.name,
        "route_prefix": "/",
        "import_path": APPLICATION,
        "args": _arguments(installation),
        "deployments": [_deployment(installation)],
    }
    worker = {
        "groupName": "engines",
        "replicas": installation.replicas,
        "minReplicas": installation.replicas,
        "maxReplicas": installation.max_replicas,
        "rayStartParams": {},
        "template": _template(installation, "ray-worker"),
    }
    # The head has no engine: it schedules, and may be anywhere.
    head = {
        "rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0"},
        "template": _template(replace(installation, hardware=slices_of("cpu")[0], weights=0), "ray-head"),
    }
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": installation.metadata(),
        "spec": {
            "serveConfigV2": to_yaml({"applications": [application]}),
            "rayClusterConfig": {
                "rayVersion": RAY_VERSION,
                "enableInTreeAutoscaling": installation.is_scaled,
                "headGroupSpec": head,
                "workerGroupSpecs": [worker],
            },
        },
    }


def _arguments(installation: Installation) -> dict[str, Any]:
    arguments: dict[str, Any] = {"model": installation.model, "tensor_parallel_size": installation.tensor_parallel_size}
    if installation.max_model_len is not None:
        arguments["max_model_len"] = installation.max_model_len
    if installation.api_keys:
        arguments["api_key_file"] = "/etc/jaxllm/keys/keys"
    if installation.model.startswith("/"):
        arguments["served_model_name"] = [installation.name]
    return arguments


def _deployment(installation: Installation) -> Object:
    number: Object = {"num_replicas": installation.replicas * installation.data_parallel_size}
    if installation.is_scaled:
        scale = installation.data_parallel_size
        number = {
            "autoscaling_config": {
                "min_replicas": installation.replicas * scale,
                "max_replicas": installation.max_replicas * scale,
            }
        }
    return {"name": "OpenAI", **number}


def _template(installation: Installation, name: str) -> Object:
    """KubeRay gives the command, ports and probes."""
    template = pod_template(installation, serves=False)
    (container,) = template["spec"]["containers"]
    del container["args"], template["spec"]["serviceAccountName"]
    template["metadata"]["labels"]["app.kubernetes.io/name"] = "jaxllm-ray"
    container["name"] = name
    # Ray writes below its home and /tmp.
    container["env"] += [{"name": "HOME", "value": "/tmp"}]
    return template
