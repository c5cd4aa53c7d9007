"""KServe: a ServingRuntime, and the InferenceService that runs a model with it."""

from dataclasses import replace

from jaxllm.models.checkpoint.find_model import SHIPPED
from jaxllm.serving.deploy.container import Object, pod, serve_container
from jaxllm.serving.deploy.installation import PORT, Installation

_MODEL = "/mnt/models"
"""Where KServe puts the model."""

_OWN = ("automountServiceAccountToken", "serviceAccountName", "terminationGracePeriodSeconds", "securityContext")
"""Fields of a pod that a ServingRuntime has not."""


def kserve_objects(installation: Installation) -> list[Object]:
    """A runtime for this hardware and an InferenceService without Knative, scaled by the runtime's own metrics.

    The model comes from the bucket, else from the Hub, by KServe's storage initializer.
    """
    bucket = installation.weights_bucket
    storage = f"hf://{installation.model}" if bucket is None else f"gs://{bucket.name}/{bucket.folder}".rstrip("/")
    is_shipped = installation.model in SHIPPED
    name = installation.model if is_shipped else _MODEL
    there = replace(installation, weights_bucket=None, executables=None, model=name)
    container = {**serve_container(there), "name": "kserve-container"}
    container["ports"] = [{"containerPort": PORT, "protocol": "TCP"}]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        container[probe]["httpGet"]["port"] = PORT
    spec = {key: value for key, value in pod(there, container).items() if key not in _OWN}
    runtime = {
        "apiVersion": "serving.kserve.io/v1alpha1",
        "kind": "ServingRuntime",
        "metadata": installation.metadata(),
        "spec": {
            "annotations": {"prometheus.kserve.io/port": str(PORT), "prometheus.kserve.io/path": "/metrics"},
            "supportedModelFormats": [{"name": "huggingface", "version": "1"}],
            **spec,
        },
    }
    model: Object = {"modelFormat": {"name": "huggingface"}, "runtime": installation.name}
    if not is_shipped:
        model["storageUri"] = storage
    service = {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {
            **installation.metadata(),
            "annotations": {"serving.kserve.io/deploymentMode": "RawDeployment"},
        },
        "spec": {
            "predictor": {
                "minReplicas": installation.replicas,
                "maxReplicas": installation.max_replicas,
                "model": model,
            }
        },
    }
    return [runtime, service]
