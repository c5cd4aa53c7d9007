"""Prompts in some pods, decoding in others, and a router in front: an installation's objects in llm-d's shape.

Each role is a LeaderWorkerSet, whose pods have names that stay (`NAME-decode-0.NAME-decode`), and llm-d's label
`llm-d.ai/role`. Clients' keys are checked by the router; servers are reached by it and by each other only.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from jaxllm.errors import ConfigError
from jaxllm.serving.deploy.container import KEYS, Object, pod, pod_template, serve_arguments, serve_container
from jaxllm.serving.deploy.environment import network_policy, pod_monitoring, service, service_account
from jaxllm.serving.deploy.hardware import slices_of
from jaxllm.serving.deploy.installation import PORT, Installation

Role = Literal["prefill", "decode"]
Part = Literal["prefill", "decode", "router"]

COMPONENT = "app.kubernetes.io/component"
TRANSFER_PORT, EVENTS_PORT, REPLAY_PORT = 14579, 5557, 5657
"""Where pods fetch pages, and read events and those that they missed."""
_SECRET = "/etc/jaxllm/transfer"
_ROLES: Mapping[Role, str] = {"prefill": "kv_producer", "decode": "kv_consumer"}


def disaggregated_objects(installation: Installation, prefill: int, decode: int) -> list[Object]:
    """Everything for so many servers of each role, in the order in which it is applied. Raises `ConfigError`."""
    if installation.hardware.hosts > 1:
        raise ConfigError("--disaggregate: each server needs one host; choose hardware with one host")
    if installation.data_parallel_size > 1:
        raise ConfigError("--disaggregate: each server has one engine; ask for more servers instead of engines")
    if installation.executables is not None or installation.is_scaled or installation.replicas > 1:
        raise ConfigError("--disaggregate: cannot be combined with --executables, --replicas and --max-replicas")
    counts: dict[Role, int] = {"prefill": prefill, "decode": decode}
    objects = [service_account(installation), _router_policy(installation), _server_policy(installation)]
    objects += [_address(installation), *(_pods_address(installation, role) for role in counts)]
    objects += [_servers(installation, role, count) for role, count in counts.items()]
    objects += [_router(installation, counts)]
    parts: tuple[Part, ...] = ("prefill", "decode", "router")
    return [*objects, *(_budget(installation, part) for part in parts), pod_monitoring(installation)]


def _labels(installation: Installation, part: Part) -> dict[str, str]:
    role = {} if part == "router" else {"llm-d.ai/role": part}
    return {**installation.labels, COMPONENT: part, **role}


def _metadata(installation: Installation, part: Part) -> Object:
    return {**installation.metadata(f"-{part}"), "labels": _labels(installation, part)}


def _servers(installation: Installation, role: Role, count: int) -> Object:
    """The servers of a role, each a group of one pod."""
    own = replace(installation, api_keys=False)
    template = pod_template(own, command=[*serve_arguments(own), *_flags(role)])
    template["metadata"]["labels"] |= _labels(installation, role)
    spec = template["spec"]
    (container,) = spec["containers"]
    address = {"fieldRef": {"fieldPath": "status.podIP"}}
    container["env"] = [{"name": "POD_IP", "valueFrom": address}, *container["env"]]
    container["ports"] += [{"name": "kv-events", "containerPort": EVENTS_PORT}]
    container["volumeMounts"] = [*container["volumeMounts"], {"name": "transfer", "mountPath": _SECRET}]
    secret = {
        "secretName": installation.keys_secret,
        "defaultMode": 0o440,
        "items": [{"key": "transfer", "path": "key"}],
    }
    spec["volumes"] = [*spec["volumes"], {"name": "transfer", "secret": secret}]
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": _metadata(installation, role),
        "spec": {
            "replicas": count,
            "rolloutStrategy": {
                "type": "RollingUpdate",
                "rollingUpdateConfiguration": {"maxSurge": 0, "maxUnavailable": 1},
            },
            "leaderWorkerTemplate": {
                "size": 1,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "workerTemplate": template,
            },
        },
    }


def _flags(role: Role) -> list[str]:
    transfer: dict[str, Any] = {
        "kv_connector": "ZmqConnector",
        "kv_role": _ROLES[role],
        "kv_ip": "$(POD_IP)",
        "kv_port": TRANSFER_PORT,
        "kv_connector_extra_config": {"secret_file": f"{_SECRET}/key"},
    }
    events = {
        "enable_kv_cache_events": True,
        "endpoint": f"tcp://*:{EVENTS_PORT}",
        "replay_endpoint": f"tcp://*:{REPLAY_PORT}",
    }
    return ["--kv-transfer-config", json.dumps(transfer), "--kv-events-config", json.dumps(events)]


def _router(installation: Installation, counts: Mapping[Role, int]) -> Object:
    """The pod that clients reach; it needs no accelerator."""
    own = replace(installation, hardware=slices_of("cpu")[0], weights=0, weights_bucket=None)
    urls = {
        role: [
            f"http://{installation.name}-{role}-{number}.{installation.name}-{role}:{PORT}" for number in range(count)
        ]
        for role, count in counts.items()
    }
    command = ["route", "--decode", *urls["decode"], "--prefill", *urls["prefill"]]
    if installation.api_keys:
        command += ["--api-key-file", f"{KEYS}/keys"]
    if installation.metrics_prefix != "jaxllm":
        command += ["--metrics-prefix", installation.metrics_prefix]
    command += ["--port", str(PORT), "--shutdown-timeout", str(installation.drain), "--log-format", "json"]
    container = serve_container(own, command)
    container["resources"] = {"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"memory": "2Gi"}}
    # It is alive before any server is; it is ready when one that decodes is.
    container["startupProbe"] = {**container["startupProbe"], "httpGet": {"path": "/live", "port": "http"}}
    labels = _labels(installation, "router")
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(installation, "router"),
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod(own, container)},
        },
    }


def _address(installation: Installation) -> Object:
    """The address inside the cluster, which is the router's."""
    found = service(installation)
    found["spec"]["selector"] = _labels(installation, "router")
    return found


def _pods_address(installation: Installation, role: Role) -> Object:
    """Names of the pods of a role, also before they are ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(installation, role),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": _labels(installation, role),
            "ports": [{"name": "http", "port": PORT}, {"name": "kv-transfer", "port": TRANSFER_PORT}],
        },
    }


def _router_policy(installation: Installation) -> Object:
    """In: clients, monitoring, load balancers. Out: names and the servers, among others."""
    found = network_policy(installation)
    found["metadata"] = _metadata(installation, "router")
    found["spec"]["podSelector"] = {"matchLabels": _labels(installation, "router")}
    found["spec"]["egress"].append({"to": [_everyone(installation)]})
    return found


def _server_policy(installation: Installation) -> Object:
    """In: the router, each other, monitoring. Out: names, HTTPS, each other."""
    found = network_policy(installation)
    monitoring = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "gmp-system"}}}
    found["spec"]["podSelector"] = {
        "matchLabels": installation.labels,
        "matchExpressions": [{"key": "llm-d.ai/role", "operator": "In", "values": list(_ROLES)}],
    }
    found["spec"]["ingress"] = [
        {"from": [_everyone(installation)]},
        {"from": [monitoring], "ports": [{"protocol": "TCP", "port": PORT}]},
    ]
    found["spec"]["egress"].append({"to": [_everyone(installation)]})
    return found


def _everyone(installation: Installation) -> Object:
    return {"podSelector": {"matchLabels": installation.labels}}


def _budget(installation: Installation, part: Part) -> Object:
    """Nodes are drained one pod of a part at a time."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(installation, part),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": _labels(installation, part)}},
    }
