"""The manifests in `docs/deploy`: `python -m jaxllm.serving.deploy.examples docs/deploy`; `--check` compares.

They are made by what `jaxllm manifest` uses, so that neither can drift from the other.
"""

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from jaxllm.serving.deploy.disaggregated import disaggregated_objects
from jaxllm.serving.deploy.documents import files_of, to_yaml
from jaxllm.serving.deploy.gateway import gateway_objects
from jaxllm.serving.deploy.hardware import slices_of
from jaxllm.serving.deploy.helm import chart_files, values_over
from jaxllm.serving.deploy.installation import Bucket, Installation
from jaxllm.serving.deploy.kserve import kserve_objects
from jaxllm.serving.deploy.kubernetes import kubernetes_objects
from jaxllm.serving.deploy.kustomize import overlay_files
from jaxllm.serving.deploy.ray_service import ray_service
from jaxllm.serving.deploy.skypilot import skypilot_task
from jaxllm.serving.deploy.virtual_machine import machine_files

NAME = "jaxllm"
"""Name of all objects, so that an overlay changes the base's."""

_BUCKET = "my-models"
_IMAGES = "us-docker.pkg.dev/my-project/jaxllm"
_LLAMA_8B, _LLAMA_70B = "Meta-Llama-3-8B-Instruct", "Meta-Llama-3-70B-Instruct"
_SIZES = {_LLAMA_8B: 16_060_522_496, _LLAMA_70B: 141_107_412_992}
"""Bytes of weights in bfloat16, of 8,030,261,248 and 70,553,706,496 parameters."""

FOLDERS = ("disaggregated", "kustomize", "helm", "kserve", "ray", "skypilot", "vm")
"""Folders of `docs/deploy` that are made here, and hold nothing else."""


@dataclass(frozen=True)
class Example:
    """An overlay: a model, the hardware that holds it, and how; a test compares it with what a plan says."""

    model: str
    device: str
    topology: str | None
    gpus: int
    tensor_parallel_size: int
    data_parallel_size: int = 1


EXAMPLES: Mapping[str, Example] = MappingProxyType(
    {
        "v5e": Example(_LLAMA_8B, "v5e", "2x2", 0, 2, 2),
        "v6e": Example(_LLAMA_8B, "v6e", "1x1", 0, 1),
        "tpu7x": Example(_LLAMA_8B, "tpu7x", "2x2x1", 0, 8),
        "v6e-70b": Example(_LLAMA_70B, "v6e", "2x4", 0, 8),
        "v6e-multi-host": Example(_LLAMA_70B, "v6e", "4x4", 0, 16),
        "l4": Example(_LLAMA_8B, "l4", None, 1, 1),
        "h100": Example(_LLAMA_8B, "h100", None, 1, 1),
    }
)
"""Overlays by name."""


def installation_of(example: Example) -> Installation:
    """The contents of an overlay: with everything that one can ask for."""
    (hardware,) = [
        each for each in slices_of(example.device, example.topology) if example.gpus in (0, each.chips_per_host)
    ]
    platform = {"tpu": "tpu", "gpu": "cuda"}[hardware.platform]
    compiled = hardware.hosts == 1 and hardware.platform == "tpu" and example.data_parallel_size == 1
    return Installation(
        name=NAME,
        model="/models",
        hardware=hardware,
        image=f"{_IMAGES}/jaxllm-{platform}:0.1.0",
        tensor_parallel_size=example.tensor_parallel_size,
        data_parallel_size=example.data_parallel_size,
        max_model_len=8192,
        weights=_SIZES[example.model],
        max_replicas=4,
        weights_bucket=Bucket(_BUCKET, example.model),
        executables=Bucket(_BUCKET, "bundles") if compiled else None,
    )


def base() -> Installation:
    """The base: the model that ships with jaxllm, on processors."""
    return Installation(
        name=NAME, model="demo", hardware=slices_of("cpu")[0], image=f"{_IMAGES}/jaxllm-cpu:0.1.0", max_replicas=4
    )


def example_files() -> dict[str, str]:
    """Every file by its name below `docs/deploy`."""
    objects = kubernetes_objects(base())
    files = {f"kustomize/base/{name}": text for name, text in files_of(objects).items()}
    for name, example in EXAMPLES.items():
        overlay = overlay_files(objects, kubernetes_objects(installation_of(example)), "../../base")
        files |= {f"kustomize/overlays/{name}/{file}": text for file, text in overlay.items()}
    files |= {f"kustomize/components/gateway/{file}": text for file, text in _gateway_component().items()}
    files |= {f"helm/jaxllm/{file}": text for file, text in chart_files(base()).items()}
    files |= {
        f"helm/values-{name}.yaml": to_yaml(values_over(installation_of(each), base()))
        for name, each in EXAMPLES.items()
    }
    alone = {name: replace(installation_of(EXAMPLES[name]), executables=None) for name in ("v6e", "h100")}
    for name, each in alone.items():
        on_ray = replace(each, image=f"{each.image}-ray")
        apart = files_of(disaggregated_objects(replace(each, max_replicas=1), 1, 2))
        files |= {f"disaggregated/{name}/{file}": text for file, text in apart.items()}
        files[f"kserve/{name}.yaml"] = to_yaml(*kserve_objects(each))
        files[f"ray/{name}.yaml"] = to_yaml(ray_service(on_ray))
        files[f"skypilot/{name}.yaml"] = to_yaml(skypilot_task(each))
    on_machine = replace(alone["v6e"], model=f"meta-llama/{_LLAMA_8B}", weights_bucket=None)
    return files | {f"vm/{file}": text for file, text in machine_files(on_machine).items()}


def _gateway_component() -> dict[str, str]:
    files = files_of(gateway_objects(base()))
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1alpha1",
        "kind": "Component",
        "resources": [name for name in files if name != "kustomization.yaml"],
    }
    return {**files, "kustomization.yaml": to_yaml(kustomization)}


def main(arguments: Sequence[str]) -> int:
    """Write or compare; 1 where a file differs, is missing, or is one too many."""
    folder = Path(arguments[-1])
    wanted = example_files()
    if "--check" not in arguments:
        for name in FOLDERS:
            shutil.rmtree(folder / name, ignore_errors=True)
        for name, text in wanted.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return 0
    there = {
        str(path.relative_to(folder)): path.read_text(encoding="utf-8")
        for name in FOLDERS
        for path in sorted((folder / name).rglob("*"))
        if path.is_file()
    }
    different = sorted(name for name in wanted.keys() | there.keys() if wanted.get(name) != there.get(name))
    for name in different:
        sys.stderr.write(f"{folder / name}: not what `scripts/lint --fix` writes\n")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
