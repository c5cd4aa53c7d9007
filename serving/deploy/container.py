"""The pod that serves: its container, probes, volumes and rights."""

import math
from typing import Any

from jaxllm.serving.deploy.installation import GIB, PORT, Installation

Object = dict[str, Any]

MODELS = "/models"
BUNDLES = "/bundles"
CACHE = "/cache"
KEYS = "/etc/jaxllm/keys"
USER = 65532
"""User and group of the images' process."""

_NO_RIGHTS: Object = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}

MANIFEST_FILE = "manifest.json"
"""The file by which a bundle is recognised, as in `jaxllm.bundle.manifest`, which loads JAX."""

_UNROUTED = 10
"""Seconds in which load balancers forget a pod that ends, before its server is told to."""
_ENDING = 30
"""Seconds that a server needs to end, beyond those that requests have."""
_READ_RATE = 100 * 10**6
"""Bytes of weights read per second and host: what one can count on."""
_COMPILING = 30 * 60
"""Seconds of a first start without executables, which compiles every program."""
_STARTING = 5 * 60


def pod_template(installation: Installation, *, command: list[str] | None = None, serves: bool = True) -> Object:
    """The template of a pod that serves, or with `serves` False of one that follows one which does."""
    metadata: Object = {"labels": dict(installation.labels)}
    if _mounts_buckets(installation):
        metadata["annotations"] = {"gke-gcsfuse/volumes": "true"}
    spec = pod(installation, serve_container(installation, command, serves=serves))
    if installation.executables is not None:
        spec["initContainers"] = [_waiting_container(installation)]
    return {"metadata": metadata, "spec": spec}


def pod(installation: Installation, container: Object) -> Object:
    """A pod of one container, which neither is root nor becomes it."""
    spec: Object = {
        "serviceAccountName": installation.name,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": grace(installation),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": _volumes(installation),
    }
    if installation.hardware.node_labels:
        spec["nodeSelector"] = dict(installation.hardware.node_labels)
    return spec


def grace(installation: Installation) -> int:
    """Seconds from the decision that a pod ends until it is killed: longer than the server's own drain."""
    return _UNROUTED + installation.drain + _ENDING


def serve_container(installation: Installation, command: list[str] | None = None, *, serves: bool = True) -> Object:
    """The container of `jaxllm serve`."""
    container: Object = {
        "name": "jaxllm",
        "image": installation.image,
        "args": command or serve_arguments(installation),
        "env": _environment(installation),
        "resources": resources(installation),
        "securityContext": _NO_RIGHTS,
        "volumeMounts": _mounts(installation),
    }
    if serves:
        container |= {"ports": [{"name": "http", "containerPort": PORT}], **probes(installation)}
        # Not /drain, which would refuse what is still routed here: SIGTERM drains when nothing more comes.
        container["lifecycle"] = {"preStop": {"sleep": {"seconds": _UNROUTED}}}
    return container


def _waiting_container(installation: Installation) -> Object:
    """Waits until the Job has put the bundle in place, which it does whole or not at all."""
    file = f"{BUNDLES}/{installation.name}/{MANIFEST_FILE}"
    program = f"import pathlib, time\nwhile not pathlib.Path({file!r}).exists():\n    time.sleep(5)\n"
    (mount,) = [each for each in _mounts(installation) if each["name"] == "bundles"]
    return {
        "name": "wait-for-bundle",
        "image": installation.image,
        "command": ["python3", "-c", program],
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
        "securityContext": _NO_RIGHTS,
        "volumeMounts": [mount],
    }


def serve_arguments(installation: Installation) -> list[str]:
    """The arguments after the image's entry point, `jaxllm`."""
    platform = {"tpu": "tpu", "gpu": "gpu", "cpu": "cpu"}[installation.hardware.platform]
    arguments = ["serve", installation.model, "--device", platform, *installation.engine_flags()]
    if installation.data_parallel_size > 1:
        arguments += ["--data-parallel-size", str(installation.data_parallel_size)]
    if installation.executables is not None:
        arguments += ["--executables", f"{BUNDLES}/{installation.name}"]
    if installation.api_keys:
        arguments += ["--api-key-file", f"{KEYS}/keys"]
    if installation.metrics_prefix != "jaxllm":
        arguments += ["--metrics-prefix", installation.metrics_prefix]
    if installation.model.startswith("/"):
        arguments += ["--served-model-name", installation.name]
    arguments += ["--port", str(PORT), "--shutdown-timeout", str(installation.drain), "--log-format", "json"]
    return [*arguments, *installation.flags]


def probes(installation: Installation) -> Object:
    """Until it has started nothing else is asked; an engine that restarts makes it not ready, and is left alive."""

    def get(path: str, **numbers: int) -> Object:
        return {"httpGet": {"path": path, "port": "http"}, "timeoutSeconds": 5, **numbers}

    return {
        "startupProbe": get("/health", periodSeconds=10, failureThreshold=math.ceil(longest_start(installation) / 10)),
        "readinessProbe": get("/ready", periodSeconds=5, failureThreshold=2),
        "livenessProbe": get("/live", periodSeconds=10, failureThreshold=6),
    }


def longest_start(installation: Installation) -> int:
    """Seconds that a start may take: reading weights, and compiling where there are no executables."""
    reading = installation.weights // installation.hardware.hosts // _READ_RATE
    return _STARTING + reading + (0 if installation.executables else _COMPILING)


def resources(installation: Installation) -> Object:
    """The accelerators of a host, and processors and memory for the server alongside them."""
    hardware = installation.hardware
    weights = installation.weights / hardware.hosts / GIB
    if hardware.resource is None:
        # Weights in float32, what a step needs, and a KV cache from a share of what is left.
        memory = f"{4 + math.ceil(weights * 1.5)}Gi"
        return {"requests": {"cpu": "4", "memory": memory}, "limits": {"memory": memory}}
    chips = {hardware.resource: str(hardware.chips_per_host)}
    # Files of weights are read through the pod's memory: most of it is a cache that the kernel may drop.
    memory = f"{8 + math.ceil(weights / 2)}Gi"
    return {"requests": {"cpu": "4", "memory": memory, **chips}, "limits": chips}


def _environment(installation: Installation) -> list[Object]:
    token = {"secretKeyRef": {"name": installation.hub_secret, "key": "token", "optional": True}}
    group = {"secretKeyRef": {"name": installation.keys_secret, "key": "group", "optional": not installation.api_keys}}
    several: list[Object] = [{"name": "JAXLLM_DISTRIBUTED_SECRET", "valueFrom": group}]
    return [
        {"name": "XDG_CACHE_HOME", "value": CACHE},
        {"name": "HF_HOME", "value": f"{CACHE}/huggingface"},
        {"name": "HF_TOKEN", "valueFrom": token},
        *(several if installation.hardware.hosts > 1 else []),
    ]


def _mounts(installation: Installation) -> list[Object]:
    mounts: list[Object] = [
        {"name": "cache", "mountPath": CACHE},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "shared-memory", "mountPath": "/dev/shm"},
    ]
    if installation.api_keys:
        mounts.append({"name": "keys", "mountPath": KEYS, "readOnly": True})
    if installation.weights_bucket is not None:
        mounts.append({"name": "models", "mountPath": MODELS, "readOnly": True})
    if installation.executables is not None:
        mounts.append({"name": "bundles", "mountPath": BUNDLES, "readOnly": True})
    return mounts


def _volumes(installation: Installation) -> list[Object]:
    hub = "/" in installation.model and installation.weights_bucket is None
    size = 10 + (math.ceil(installation.weights / GIB * 1.1) if hub else 0)
    volumes: list[Object] = [
        {"name": "cache", "emptyDir": {"sizeLimit": f"{size}Gi"}},
        {"name": "tmp", "emptyDir": {"sizeLimit": "5Gi"}},
        {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
    ]
    if installation.api_keys:
        volumes.append({"name": "keys", "secret": {"secretName": installation.keys_secret, "defaultMode": 0o440}})
    if installation.weights_bucket is not None:
        volumes.append(bucket_volume("models", installation.weights_bucket.name, installation.weights_bucket.folder))
    if installation.executables is not None:
        volumes.append(bucket_volume("bundles", installation.executables.name, installation.executables.folder))
    return volumes


def bucket_volume(name: str, bucket: str, folder: str, *, written: bool = False) -> Object:
    """A folder of a bucket by Cloud Storage FUSE; one that is written can rename folders, as bundles need."""
    options = ["implicit-dirs", *([f"only-dir={folder}"] if folder else [])]
    if written:
        options.append("rename-dir-limit=10000")
    driver = {"driver": "gcsfuse.csi.storage.gke.io", "readOnly": not written}
    return {
        "name": name,
        "csi": {**driver, "volumeAttributes": {"bucketName": bucket, "mountOptions": ",".join(options)}},
    }


def _mounts_buckets(installation: Installation) -> bool:
    return installation.weights_bucket is not None or installation.executables is not None
