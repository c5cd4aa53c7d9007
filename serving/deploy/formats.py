"""The forms in which an installation is written: `jaxllm manifest --format`."""

import sys
from dataclasses import dataclass
from pathlib import Path

from jaxllm.serving.deploy.container import Object
from jaxllm.serving.deploy.disaggregated import disaggregated_objects
from jaxllm.serving.deploy.documents import files_of, to_yaml, write_files
from jaxllm.serving.deploy.helm import chart_files
from jaxllm.serving.deploy.installation import Installation
from jaxllm.serving.deploy.kserve import kserve_objects
from jaxllm.serving.deploy.kubernetes import kubernetes_objects
from jaxllm.serving.deploy.ray_service import ray_service
from jaxllm.serving.deploy.skypilot import skypilot_task
from jaxllm.serving.deploy.virtual_machine import machine_files

Files = dict[str, str]
"""Texts by the name of their file."""


@dataclass(frozen=True)
class Wanted:
    """What is asked for."""

    installation: Installation
    gateway: bool = False
    disaggregate: tuple[int, int] | None = None
    """Servers that compute prompts, and those that decode; None: each does both."""


def write(format_name: str, wanted: Wanted, folder: Path | None) -> None:
    """Write files to a folder, or to standard output as one stream. Raises `ConfigError` for a folder that is there."""
    if folder is None:
        sys.stdout.write(to_yaml(*_objects(format_name, wanted)))
    else:
        write_files(folder, _files(format_name, wanted))


def _objects(name: str, wanted: Wanted) -> list[Object]:
    """The objects of a format that consists of such."""
    if name == "kserve":
        return kserve_objects(wanted.installation)
    if name == "ray":
        return [ray_service(wanted.installation)]
    if name == "skypilot":
        return [skypilot_task(wanted.installation)]
    if wanted.disaggregate is not None:
        return disaggregated_objects(wanted.installation, *wanted.disaggregate)
    return kubernetes_objects(wanted.installation, gateway=wanted.gateway)


def _files(name: str, wanted: Wanted) -> Files:
    if name == "helm":
        return chart_files(wanted.installation)
    if name == "systemd":
        return machine_files(wanted.installation)
    objects = _objects(name, wanted)
    return {"task.yaml": to_yaml(*objects)} if name == "skypilot" else files_of(objects)


STREAMS = ("kubernetes", "kserve", "ray", "skypilot")
"""Formats that are YAML documents, and can be printed."""

FORMATS = (*STREAMS, "helm", "systemd")
"""The values of `--format`."""
