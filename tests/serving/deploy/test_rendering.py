"""Overlays and charts as kubectl and helm render them: what comes out is what `jaxllm manifest` writes.

`scripts/kubectl` puts both into the environment; without them these tests are skipped.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from jaxllm.serving.deploy.documents import to_yaml, write_files
from jaxllm.serving.deploy.examples import EXAMPLES, NAME, base, example_files, installation_of
from jaxllm.serving.deploy.helm import chart_files, values_of
from jaxllm.serving.deploy.kubernetes import kubernetes_objects
from tests.conftest import ROOT
from tests.serving.deploy.validation import check

Objects = dict[tuple[str, str], dict[str, Any]]
DEPLOY = ROOT / "docs" / "deploy"


def tool(name: str) -> str:
    """The path of a tool, alongside this Python or elsewhere."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        pytest.skip(f"no {name}: scripts/kubectl brings it")
    return found


def objects_of(text: str) -> Objects:
    return by_name(list(yaml.safe_load_all(text)))


def by_name(objects: list[dict[str, Any]]) -> Objects:
    return {(each["kind"], each["metadata"]["name"]): without_nulls(each) for each in objects}


def without_nulls(value: Any) -> Any:
    """A key that is null is one that is not there, to Kubernetes."""
    if isinstance(value, dict):
        return {key: without_nulls(each) for key, each in value.items() if each not in (None, {}, [])}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


def sorted_lists(value: Any) -> Any:
    """Entries that are merged by name come in an order of the tool's own."""
    if isinstance(value, dict):
        return {key: sorted_lists(each) for key, each in value.items()}
    if isinstance(value, list) and value and all(isinstance(each, dict) and "name" in each for each in value):
        return sorted((sorted_lists(each) for each in value), key=lambda each: (each["name"], str(each)))
    return [sorted_lists(each) for each in value] if isinstance(value, list) else value


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)  # noqa: PLW1510
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["base", *EXAMPLES])
def test_kustomize_renders_what_the_command_writes(name: str) -> None:
    kubectl = tool("kubectl")
    installation = base() if name == "base" else installation_of(EXAMPLES[name])
    folder = DEPLOY / "kustomize" / ("base" if name == "base" else f"overlays/{name}")
    rendered = objects_of(run(kubectl, "kustomize", str(folder)))
    assert sorted_lists(rendered) == sorted_lists(by_name(kubernetes_objects(installation)))
    for each in rendered.values():
        check(each)


def test_the_gateway_is_a_component(tmp_path: Path) -> None:
    kubectl = tool("kubectl")
    shutil.copytree(DEPLOY / "kustomize", tmp_path / "kustomize")
    both = {"resources": ["../kustomize/overlays/v6e"], "components": ["../kustomize/components/gateway"]}
    write_files(tmp_path / "mine", {"kustomization.yaml": to_yaml(both)})
    rendered = objects_of(run(kubectl, "kustomize", str(tmp_path / "mine")))
    wanted = by_name(kubernetes_objects(installation_of(EXAMPLES["v6e"]), gateway=True))
    assert sorted_lists(rendered) == sorted_lists(wanted)


@pytest.mark.parametrize("name", ["v5e", "v6e", "v6e-multi-host", "l4"])
def test_helm_renders_what_the_command_writes(name: str) -> None:
    helm = tool("helm")
    values = DEPLOY / "helm" / f"values-{name}.yaml"
    rendered = objects_of(run(helm, "template", NAME, str(DEPLOY / "helm" / "jaxllm"), "--values", str(values)))
    assert rendered == by_name(kubernetes_objects(installation_of(EXAMPLES[name])))


def test_a_release_of_another_name(tmp_path: Path) -> None:
    helm = tool("helm")
    write_files(tmp_path / "chart", chart_files(base()))
    run(helm, "lint", "--strict", str(tmp_path / "chart"))
    rendered = run(helm, "template", "other", str(tmp_path / "chart"), "--set", "image=mine:1")
    assert all(name == "other" for _, name in objects_of(rendered))
    (deployment,) = [each for (kind, _), each in objects_of(rendered).items() if kind == "Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "mine:1"
    assert {"name": "keys", "secret": {"secretName": "other-keys", "defaultMode": 0o440}} in pod["volumes"]


def test_the_files_are_those_that_are_made() -> None:
    for name, text in example_files().items():
        assert (DEPLOY / name).read_text() == text, f"{name}: scripts/lint --fix writes it"


def test_values_hold_no_name_of_a_release() -> None:
    assert "release-name-mark" not in to_yaml(values_of(base()))
