"""A kustomize base and its overlays: what differs between two sets of objects, as strategic merge patches."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxllm.serving.deploy.container import Object
from jaxllm.serving.deploy.documents import KUSTOMIZATION, file_name, to_yaml

_MERGED = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
}
"""Lists that are merged by entry, and the key of an entry; others are replaced."""


def overlay_files(base: Sequence[Object], wanted: Sequence[Object], path_of_base: str) -> dict[str, str]:
    """Files of an overlay that makes `wanted` of `base`, which lies at a path from there.

    Objects are the same where kind and name are. Those that only `base` has are deleted.
    """
    old = {_identity(each): each for each in base}
    new = {_identity(each): each for each in wanted}
    files = {file_name(each): to_yaml(each) for key, each in new.items() if key not in old}
    patches = {
        f"{file_name(each).removesuffix('.yaml')}-patch.yaml": to_yaml(patch)
        for key, each in new.items()
        if key in old and (patch := object_patch(old[key], each))
    }
    deleted = [{"patch": to_yaml({**_naming(each), "$patch": "delete"})} for key, each in old.items() if key not in new]
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [path_of_base, *files],
        "patches": [*({"path": name} for name in patches), *deleted],
    }
    return {KUSTOMIZATION: to_yaml(kustomization), **files, **patches}


def object_patch(old: Object, new: Object) -> Object | None:
    """The patch that makes one object of another of the same kind and name; None where they are equal."""
    if old == new:
        return None
    changes = _difference(old, new)
    metadata = {**_naming(new)["metadata"], **changes.pop("metadata", {})}
    return {**_naming(new), "metadata": metadata, **changes}


def _difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> Object:
    """A patch to merge into `old`: removed keys are null."""
    found: Object = dict.fromkeys(old.keys() - new.keys())
    for key, value in new.items():
        before = old.get(key)
        if before == value:
            continue
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            found[key] = _difference(before, value)
        elif key in _MERGED and isinstance(before, list):
            found[key] = _entries(before, value, _MERGED[key])
        else:
            found[key] = value
    return found


def _entries(old: Sequence[Object], new: Sequence[Object], key: str) -> list[Object]:
    before = {each[key]: each for each in old}
    after = {each[key]: each for each in new}
    changed = [
        {key: name, **_difference(before[name], each)} if name in before else each
        for name, each in after.items()
        if each != before.get(name)
    ]
    return [*changed, *({"$patch": "delete", key: name} for name in before if name not in after)]


def _identity(document: Object) -> tuple[str, str]:
    return document["kind"], document["metadata"]["name"]


def _naming(document: Object) -> Object:
    metadata = {"name": document["metadata"]["name"]}
    return {"apiVersion": document["apiVersion"], "kind": document["kind"], "metadata": metadata}
