"""A SkyPilot task: the same server on whatever cloud has the hardware."""

import shlex

from jaxllm.errors import ConfigError
from jaxllm.serving.deploy.container import Object, serve_arguments
from jaxllm.serving.deploy.installation import PORT, Installation

_TPU_RUNTIMES = {
    "v4": "tpu-vm-v4-base",
    "v5e": "v2-alpha-tpuv5-lite",
    "v5p": "v2-alpha-tpuv5",
    "v6e": "v2-alpha-tpuv6e",
}
"""Images of TPU VMs, by chip ("TPU software versions", docs.cloud.google.com)."""

_NAMES = {"v4": "tpu-v4", "v5e": "tpu-v5litepod", "v5p": "tpu-v5p", "v6e": "tpu-v6e", "l4": "L4", "h100": "H100"}


def skypilot_task(installation: Installation) -> Object:
    """A task for `sky launch`, and a service for `sky serve up`. Raises `ConfigError` for what it cannot place."""
    hardware = installation.hardware
    if hardware.hosts > 1 or installation.executables is not None:
        raise ConfigError(
            "--format skypilot supports one host, and no --executables; choose a smaller slice, or omit the flag"
        )
    resources: Object = {"cpus": "4+", "memory": "16+", "ports": PORT}
    if hardware.platform != "cpu":
        if hardware.device not in _NAMES:
            raise ConfigError(f"--format skypilot does not support {hardware.device}; known: {', '.join(_NAMES)}")
        name = _NAMES[hardware.device]
        # A TPU's name tells how many cores (v4, v5p) or chips there are.
        cores = hardware.chips_per_host * (2 if hardware.device in ("v4", "v5p") else 1)
        is_tpu = hardware.platform == "tpu"
        resources = {
            "accelerators": f"{name}-{cores}" if is_tpu else f"{name}:{hardware.chips_per_host}",
            "ports": PORT,
        }
        if is_tpu:
            resources["infra"] = "gcp"
            resources["accelerator_args"] = {"runtime_version": _TPU_RUNTIMES[hardware.device]}
    extra = {"tpu": "[tpu]", "gpu": "[cuda]", "cpu": ""}[hardware.platform]
    task: Object = {
        "name": installation.name,
        "resources": resources,
        "workdir": ".",
        "setup": f"python3 -m venv ~/jaxllm\n~/jaxllm/bin/pip install '.{extra}'\n",
        "run": f"~/jaxllm/bin/jaxllm {shlex.join(_arguments(installation))}\n",
        "service": {
            "readiness_probe": {"path": "/ready", "initial_delay_seconds": 3600},
            "replicas": installation.replicas,
        },
    }
    if installation.api_keys:
        task["secrets"] = {"JAXLLM_API_KEY": None}
    if installation.weights_bucket is not None:
        bucket = installation.weights_bucket
        task["file_mounts"] = {
            "/models": {"source": f"gs://{bucket.name}/{bucket.folder}".rstrip("/"), "mode": "MOUNT"}
        }
    return task


def _arguments(installation: Installation) -> list[str]:
    """Keys come from the environment here."""
    arguments = serve_arguments(installation)
    if installation.api_keys:
        at = arguments.index("--api-key-file")
        del arguments[at : at + 2]
    return arguments
