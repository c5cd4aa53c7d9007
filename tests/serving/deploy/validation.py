"""Objects against the schemas of what reads them: Kubernetes' own, and those of custom resources in `schemas/`.

The latter are reduced: without descriptions, status and what is never written here. They refuse unknown fields, as the
API server's strict validation does. Pods in them are checked as pods.
"""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate

SCHEMAS = Path(__file__).parent / "schemas"
KUBERNETES = ("1.33", "1.37")
"""The oldest release that GKE still offers, and the newest whose schemas there are."""


def check(document: dict[str, Any]) -> None:
    """Raise the validator's own error for an object that its API would refuse."""
    schema = _custom(document["kind"])
    if schema is None:
        for version in KUBERNETES:
            kubernetes_validate.validate(document, version, strict=True)
        return
    assert document["apiVersion"] == schema["apiVersion"]
    jsonschema.validate(document, schema, jsonschema.Draft202012Validator)
    for spec in pods_of(document):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec}
        kubernetes_validate.validate(pod, KUBERNETES[-1], strict=True)


def pods_of(document: Any) -> Iterator[dict[str, Any]]:
    """Every pod's specification in an object."""
    if isinstance(document, dict):
        if isinstance(document.get("containers"), list):
            yield {key: value for key, value in document.items() if key not in ("supportedModelFormats", "annotations")}
            return
        for value in document.values():
            yield from pods_of(value)
    elif isinstance(document, list):
        for value in document:
            yield from pods_of(value)


@cache
def _custom(kind: str) -> dict[str, Any] | None:
    file = SCHEMAS / f"{kind}.json"
    return json.loads(file.read_text()) if file.exists() else None
