"""Objects as YAML: on standard output as one stream, or a file each in a folder that `kubectl apply -k` takes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from jaxllm.errors import ConfigError
from jaxllm.serving.deploy.container import Object

KUSTOMIZATION = "kustomization.yaml"


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]  # PyYAML has no types
    """Lists are indented below their key, nothing is an alias, and texts of several lines are blocks."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)


def to_yaml(*documents: Any) -> str:
    """Documents in one stream, keys in the order that they were given."""
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=1000, explicit_start=len(documents) > 1)


def file_name(document: Object) -> str:
    """`deployment.yaml`, after its kind and the component that it is of; of Services, one may be headless."""
    kind = "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in document["kind"]).lstrip("-")
    suffix = "-headless" if document.get("spec", {}).get("clusterIP") == "None" else ""
    component = document["metadata"].get("labels", {}).get("app.kubernetes.io/component")
    return f"{kind}{suffix}{f'-{component}' if component else ''}.yaml"


def files_of(objects: Sequence[Object]) -> dict[str, str]:
    """A file for each object, and a kustomization that names them all."""
    files = {file_name(each): to_yaml(each) for each in objects}
    assert len(files) == len(objects)
    kustomization = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": [*files]}
    return {KUSTOMIZATION: to_yaml(kustomization), **files}


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write files, some in folders of their own, to a new or empty folder. Raises `ConfigError` where one cannot."""
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise ConfigError(f"--output {folder}: exists and is not empty; give a new or empty folder")
    try:
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--output {folder}: cannot be written: {error}") from error
