"""A Helm chart of the same objects: what differs between installations is taken from values.

One table says which fields are open. Templates are the objects with a mark in each of them, for which Helm puts the
value as JSON, which YAML contains: nothing depends on indentation. Values are those fields of an installation's own
objects, so a chart with its values renders what the other forms say. The name is Helm's name of the release.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from jaxllm.serving.deploy.container import Object
from jaxllm.serving.deploy.documents import file_name, to_yaml
from jaxllm.serving.deploy.hardware import slices_of
from jaxllm.serving.deploy.installation import Bucket, Installation
from jaxllm.serving.deploy.kubernetes import kubernetes_objects
from jaxllm.version import __version__

Path = tuple[str | int, ...]

_NAME = "release-name-mark"
_RELEASE = "{{ .Release.Name }}"
_MARK = re.compile(r"'?__values_([\w.]+)__'?")

_POD: Mapping[Path, str] = {
    ("metadata", "annotations"): "podAnnotations",
    ("spec", "nodeSelector"): "nodeSelector",
    ("spec", "initContainers"): "initContainers",
    ("spec", "volumes"): "volumes",
    ("spec", "terminationGracePeriodSeconds"): "terminationGracePeriodSeconds",
    ("spec", "containers", 0, "image"): "image",
    ("spec", "containers", 0, "args"): "args",
    ("spec", "containers", 0, "env"): "env",
    ("spec", "containers", 0, "resources"): "resources",
    ("spec", "containers", 0, "volumeMounts"): "volumeMounts",
}
_SERVER: Mapping[Path, str] = {**_POD, ("spec", "containers", 0, "startupProbe"): "startupProbe"}


def _within(path: Path, fields: Mapping[Path, str], prefix: str = "") -> dict[Path, str]:
    return {(*path, *inner): prefix + name for inner, name in fields.items()}


_GROUP = ("spec", "leaderWorkerTemplate")
_OPEN: Mapping[str, Mapping[Path, str]] = {
    "Deployment": {("spec", "replicas"): "replicas", **_within(("spec", "template"), _SERVER)},
    "LeaderWorkerSet": {
        ("spec", "replicas"): "replicas",
        (*_GROUP, "size"): "hosts",
        **_within((*_GROUP, "leaderTemplate"), _SERVER),
        **_within((*_GROUP, "workerTemplate"), _POD),
    },
    "Job": _within(("spec", "template"), _POD, "compile."),
    "HorizontalPodAutoscaler": {
        ("spec", "minReplicas"): "autoscaling.minReplicas",
        ("spec", "maxReplicas"): "autoscaling.maxReplicas",
        ("spec", "metrics"): "autoscaling.metrics",
        ("spec", "scaleTargetRef"): "autoscaling.scaleTargetRef",
    },
    "NetworkPolicy": {("spec", "ingress"): "networkPolicy.ingress", ("spec", "egress"): "networkPolicy.egress"},
    "Service": {("spec", "selector"): "selector"},
    "PodMonitoring": {("spec", "selector", "matchLabels"): "selector"},
    "PodDisruptionBudget": {("spec", "selector", "matchLabels"): "selector"},
}
"""Fields that values give, by kind of object."""

_CONDITIONS = {
    "horizontal-pod-autoscaler": ".Values.autoscaling",
    "job": ".Values.compile",
    "deployment": "eq (int .Values.hosts) 1",
    "leader-worker-set": "gt (int .Values.hosts) 1",
    "service-headless": "gt (int .Values.hosts) 1",
}
"""When an object is made, by the name of its file; others always are."""


def chart_files(installation: Installation) -> dict[str, str]:
    """The chart, with values that make this installation."""
    chart = {
        "apiVersion": "v2",
        "name": "jaxllm",
        "description": "LLM inference and serving in JAX, on TPUs, GPUs and CPUs",
        "type": "application",
        "version": _version(),
        "appVersion": __version__,
        "kubeVersion": ">=1.30.0-0",
    }
    return {"Chart.yaml": to_yaml(chart), "values.yaml": to_yaml(values_of(installation)), **_templates()}


def values_of(installation: Installation) -> Object:
    """`values.yaml`: the open fields, as this installation has them, but for its name."""
    values: Object = {"hosts": installation.hardware.hosts, "autoscaling": None, "compile": None, "networkPolicy": {}}
    for document in kubernetes_objects(replace(installation, name=_NAME)):
        for path, name in _fields(document).items():
            section, _, field = name.rpartition(".")
            if section and values[section] is None:
                values[section] = {}
            holder = values[section] if section else values
            holder.setdefault(field, _get(document, path))
    return _renamed(values)


def values_over(installation: Installation, chart: Installation) -> Object:
    """Values for `--values`, over the chart's own: Helm merges them, and null takes a key away."""
    return _difference(values_of(chart), values_of(installation))


def _difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> Object:
    found: Object = dict.fromkeys(old.keys() - new.keys())
    for key, value in new.items():
        before = old.get(key)
        if value == before:
            continue
        is_merged = isinstance(before, Mapping) and isinstance(value, Mapping)
        found[key] = _difference(before, value) if is_merged else value  # type: ignore[arg-type]
    return found


def _templates() -> dict[str, str]:
    found: dict[str, str] = {}
    for topology in ("2x4", "4x4"):
        hardware = slices_of("v6e", topology)[0]
        compiled = Bucket("bucket", "") if hardware.hosts == 1 else None
        example = Installation(
            name=_NAME, model="demo", hardware=hardware, image="", max_replicas=2, executables=compiled
        )
        for document in kubernetes_objects(example):
            found.setdefault(f"templates/{file_name(document)}", _template(document))
    return found


def _template(document: Object) -> str:
    condition = _CONDITIONS.get(file_name(document).removesuffix(".yaml"))
    marked = json.loads(json.dumps(document))
    for path, name in _fields(document).items():
        _put(marked, path, f"__values_{name}__")
    text = _MARK.sub(r"{{ tpl (toJson .Values.\1) $ }}", to_yaml(_renamed(marked)))
    return text if condition is None else f"{{{{- if {condition} }}}}\n{text}{{{{- end }}}}\n"


def _fields(document: Object) -> Mapping[Path, str]:
    is_headless = document.get("spec", {}).get("clusterIP") == "None"
    return {} if is_headless else _OPEN.get(document["kind"], {})


def _get(document: Any, path: Path) -> Any:
    for key in path:
        document = document.get(key) if isinstance(document, Mapping) else document[key]
    return document


def _put(document: Any, path: Path, value: Any) -> None:
    _get(document, path[:-1])[path[-1]] = value


def _renamed(value: Any) -> Any:
    """With the release's name where the name of the example is."""
    if isinstance(value, str):
        return value.replace(_NAME, _RELEASE)
    if isinstance(value, Mapping):
        return {key: _renamed(each) for key, each in value.items()}
    return [_renamed(each) for each in value] if isinstance(value, Sequence) else value


def _version() -> str:
    """As Helm wants it: three numbers, and what follows them after a hyphen."""
    numbers, rest = re.fullmatch(r"((?:\d+\.)*\d+)(.*)", __version__).groups()  # type: ignore[union-attr]
    three = ".".join([*numbers.split("."), "0", "0"][:3])
    return f"{three}-{rest.lstrip('.+')}" if rest else three
