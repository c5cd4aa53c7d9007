"""Workloads of the pods: Deployments on single hosts, LeaderWorkerSets where several hosts are one engine, and Jobs."""

from dataclasses import replace

from jaxllm.serving.deploy.container import (
    BUNDLES,
    Object,
    bucket_volume,
    pod,
    pod_template,
    serve_arguments,
    serve_container,
)
from jaxllm.serving.deploy.installation import Installation

GROUP_PORT = 29501
"""Where the first of several hosts is found by the others; `jax.distributed` has the next port."""


def workload(installation: Installation) -> list[Object]:
    """The object that runs the pods, and what it needs to."""
    if installation.hardware.hosts == 1:
        return [deployment(installation)]
    return [headless_service(installation), leader_worker_set(installation)]


def scaled_object(installation: Installation) -> Object:
    """The object that an autoscaler scales."""
    if installation.hardware.hosts == 1:
        return {"apiVersion": "apps/v1", "kind": "Deployment", "name": installation.name}
    return {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "name": installation.group}


def serving_labels(installation: Installation) -> dict[str, str]:
    """Labels of the pods that answer: of several hosts the first."""
    first = {"leaderworkerset.sigs.k8s.io/worker-index": "0"} if installation.hardware.hosts > 1 else {}
    return {**installation.labels, **first}


def deployment(installation: Installation) -> Object:
    """Pods of one host each."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": installation.metadata(),
        "spec": {
            **_replicas(installation),
            "selector": {"matchLabels": installation.labels},
            # Accelerators for one more are seldom free: an old pod makes room before a new one starts.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            "template": pod_template(installation),
        },
    }


def leader_worker_set(installation: Installation) -> Object:
    """Groups of pods. Each group is one engine, and restarts as a whole."""
    ranks = [
        "--nnodes",
        str(installation.hardware.hosts),
        "--node-rank",
        "$(LWS_WORKER_INDEX)",
        "--master-addr",
        "$(LWS_LEADER_ADDRESS)",
        "--master-port",
        str(GROUP_PORT),
    ]
    command = [*serve_arguments(installation), *ranks]
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {
            **installation.metadata("-group"),
            # A group has all nodes of one slice.
            "annotations": {"leaderworkerset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"},
        },
        "spec": {
            **_replicas(installation),
            "rolloutStrategy": {
                "type": "RollingUpdate",
                "rollingUpdateConfiguration": {"maxSurge": 0, "maxUnavailable": 1},
            },
            "leaderWorkerTemplate": {
                "size": installation.hardware.hosts,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": pod_template(installation, command=command),
                "workerTemplate": pod_template(installation, command=command, serves=False),
            },
        },
    }


def headless_service(installation: Installation) -> Object:
    """Names of the pods of a group, by which they find each other before they are ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": installation.metadata("-group"),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {"leaderworkerset.sigs.k8s.io/name": installation.group},
            "ports": [{"name": "group", "port": GROUP_PORT}, {"name": "coordinator", "port": GROUP_PORT + 1}],
        },
    }


def compile_job(installation: Installation) -> Object:
    """Compiles once for all pods; for a TPU on any node, for a GPU on one that has it."""
    bucket, hardware = installation.executables, installation.hardware
    assert bucket is not None
    # It answers nobody.
    installation = replace(installation, api_keys=False)
    topology = installation.engine_topology or ""
    target = ["--device", hardware.device, "--topology", topology] if hardware.platform == "tpu" else []
    command = ["compile", installation.model, *target, *installation.engine_flags()]
    command += ["--output", f"{BUNDLES}/{installation.name}", *installation.flags]
    container = serve_container(installation, command, serves=False)
    spec = pod(installation, container)
    spec["restartPolicy"] = "Never"
    for each in container["volumeMounts"]:
        if each["name"] == "bundles":
            each["readOnly"] = False
    written = bucket_volume("bundles", bucket.name, bucket.folder, written=True)
    spec["volumes"] = [written if each["name"] == "bundles" else each for each in spec["volumes"]]
    if hardware.platform == "tpu":
        # The compiler needs processors and memory, and no chip.
        del spec["nodeSelector"]
        container["resources"] = {"requests": {"cpu": "4", "memory": "16Gi"}}
    metadata = {"labels": {**installation.labels, "app.kubernetes.io/name": "jaxllm-compile"}}
    metadata["annotations"] = {"gke-gcsfuse/volumes": "true"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {**installation.metadata("-compile")},
        "spec": {
            "backoffLimit": 2,
            "ttlSecondsAfterFinished": 86400,
            "template": {"metadata": metadata, "spec": spec},
        },
    }


def _replicas(installation: Installation) -> Object:
    """None where an autoscaler sets them: applying the manifest again would set them back."""
    return {} if installation.is_scaled else {"replicas": installation.replicas}
