"""Why the executables of one engine are not for another."""

import json
from collections.abc import Mapping
from typing import Any

CPU_FEATURES = "cpu_features"
"""Instruction sets that executables use; a machine may have more."""

MEASURED_BLOCKS = "measured_blocks"
"""Block sizes that were measured where executables were made. They are part of these, and others do as well."""

_DIGESTS = {
    "code": "made by another version of jaxllm's sources",
    "model_config": "for another model configuration",
    "arrays": "for arrays of other shapes, dtypes or shardings",
    "shapes": "for other step shapes",
}
"""The meaning of a digest that differs."""

_CONSEQUENCES = ("stage", "devices", "arrays", "shapes")
"""Differ whenever certain others do."""


def differences(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    """Why executables made for `theirs` are not for `ours`: one text per difference, none if they are.

    What only follows from others is left out: nearly everything differs between two platforms.
    """
    names = [name for name in (*ours, *(set(theirs) - set(ours))) if not _suits(name, theirs, ours)]
    if "platform" in names:
        names = ["platform", "device_kind"]
    elif set(names) - set(_CONSEQUENCES):
        names = [name for name in names if name not in _CONSEQUENCES]
    return [_difference(name, theirs, ours) for name in names]


def _suits(name: str, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> bool:
    if name == MEASURED_BLOCKS:
        return True
    if name not in theirs or name not in ours:
        return False
    if name == CPU_FEATURES:
        return _texts(theirs[name]) <= _texts(ours[name])
    return bool(theirs[name] == ours[name])


def _difference(name: str, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    if name not in theirs or name not in ours:
        return f"{name}: {'missing from the bundle' if name in ours else 'unknown here'}"
    if name == CPU_FEATURES:
        lacking = " ".join(sorted(_texts(theirs[name]) - _texts(ours[name])))
        return f"{name}: the bundle uses instructions that this CPU lacks ({lacking})"
    if name in _DIGESTS:
        return f"{name}: {_DIGESTS[name]}"
    return f"{name}: {_shown(theirs[name])} in the bundle, {_shown(ours[name])} here"


def _texts(value: Any) -> set[str]:
    return set(map(str, value)) if isinstance(value, list) else {str(value)}


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."
