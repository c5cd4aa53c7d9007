"""Block sizes that were measured on a chip of this machine, in the user's cache; they come before those that ship.

What was measured counts as long as it is the same kind of chip, the same libraries and the same kernels: anything else
is another name in the cache, under which nothing is found.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from jaxllm.pallas_kernels.artifact_cache import ArtifactCache

Key = tuple[tuple[str, int | str], ...]

PACKAGES = ("jax", "jaxlib", "libtpu", "jax-cuda12-pjrt", "jax-cuda13-pjrt")
"""The compilers of kernels, as far as they are installed."""

_LARGEST = 1 << 20
"""Bytes of the cache."""

_COMMON = "tpu_common"
"""Folder of what kernels share, next to those of operations."""


def key_of(fields: Mapping[str, int | str]) -> Key:
    """The fields of a key in an order of their own."""
    return tuple(sorted(fields.items()))


def measured_folder() -> Path:
    """Where the user's measured block sizes are: alongside JAX's cache, if that is in its usual place."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jaxllm" / "tuned"


def measured_blocks(operation: str, device_kind: str) -> Mapping[Key, Mapping[str, int]]:
    """Measurements for an operation on a kind of device (`jax.Device.device_kind`); a process reads it once."""
    return _read(measured_folder(), operation, device_kind)


def store_measured(operation: str, device_kind: str, entry: Mapping[str, Any]) -> None:
    """Cache an entry, in place of one with its key: `key`, `blocks`, and whatever says how it was found."""
    cache, name = _cache(measured_folder()), _name(operation, device_kind)
    others = [other for other in _entries(cache, name) if other["key"] != entry["key"]]
    content = {**_provenance(operation, device_kind), "entries": [*others, entry]}
    cache.put(name, json.dumps(content, indent=1).encode())
    _read.cache_clear()


def measured_digest() -> str | None:
    """A digest of all that was measured, for what is made with it; None where nothing was."""
    folder = measured_folder()
    if not folder.is_dir():
        return None
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.json")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


@cache
def _read(folder: Path, operation: str, device_kind: str) -> Mapping[Key, Mapping[str, int]]:
    # What kernels take must not change while an engine compiles its steps.
    return {key_of(each["key"]): each["blocks"] for each in _entries(_cache(folder), _name(operation, device_kind))}


def _cache(folder: Path) -> ArtifactCache:
    return ArtifactCache(folder, _LARGEST)


def _entries(cache: ArtifactCache, name: str) -> list[dict[str, Any]]:
    found = cache.get(name)
    return [] if found is None else list(json.loads(bytes(found))["entries"])


def _name(operation: str, device_kind: str) -> str:
    provenance = json.dumps(_provenance(operation, device_kind), sort_keys=True)
    return f"{operation}-{hashlib.sha256(provenance.encode()).hexdigest()[:16]}.json"


def _provenance(operation: str, device_kind: str) -> dict[str, Any]:
    """All that decides which block sizes are best, apart from the key."""
    digest, root = hashlib.sha256(), Path(__file__).parent
    for file in sorted(file for folder in (operation, _COMMON) for file in (root / folder).rglob("*.py")):
        digest.update(file.read_bytes())
    return {
        "operation": operation,
        "device_kind": device_kind,
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "kernels": digest.hexdigest()[:16],
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
