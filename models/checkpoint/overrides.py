"""Values in place of those of config.json."""

from collections.abc import Mapping
from typing import Any

from jaxllm.models.errors import ModelError

_PARAMETERS, _SCALING, _THETA = "rope_parameters", "rope_scaling", "rope_theta"
_OF_ANY_KIND = (_THETA, "partial_rotary_factor")
"""The rope options that every kind shares."""


def overridden(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The values with the overrides: objects are merged, other values replaced.

    Rope options may be overridden in either of their forms (`rope_parameters` of transformers 5, or `rope_theta` and
    `rope_scaling`), whichever the values have. Another kind of rope replaces the old one; only the base and the rotated
    part stay. Raises `ModelError` for rope options that do not say to which layers they belong.
    """
    merged = dict(values)
    for key, value in overrides.items():
        own = values.get(key)
        merged[key] = overridden(own, value) if isinstance(own, dict) and isinstance(value, Mapping) else value
    if {_PARAMETERS, _SCALING, _THETA} & overrides.keys():
        merged |= _ropes(values, overrides)
    return merged


def _ropes(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The section with rope options, and None for the other section they could be in."""
    theta, new, scaling = (overrides.get(key) for key in (_THETA, _PARAMETERS, _SCALING))
    if any(each is not None and not isinstance(each, Mapping) for each in (new, scaling)):
        return {}  # Whoever reads them says what is wrong.
    old, old_scaling = (
        {**each} if isinstance(each := values.get(key), dict) else {} for key in (_PARAMETERS, _SCALING)
    )
    if _is_by_layer(old) or _is_by_layer(new):
        if theta is not None or scaling or (new and not _is_by_layer(new)):
            raise ModelError(
                "hf_overrides: this model has rope options per layer type; override them as "
                'rope_parameters={"full_attention": {...}, ...}'
            )
        kinds = {kind: _changed(old.get(kind), each) for kind, each in (new or {}).items()}
        return {_PARAMETERS: {**(old if _is_by_layer(old) else {}), **kinds}, _SCALING: None}
    rope = {**_common(old), **old_scaling} if old_scaling else old
    if theta is not None and rope.get(_THETA) is not None:
        rope[_THETA] = theta
    if _SCALING in overrides and scaling is None:
        rope = _common(rope)
    for each in (scaling, new):
        rope = _changed(rope, each)
    place = _SCALING if old_scaling or not (old or new) else _PARAMETERS
    other = _PARAMETERS if place == _SCALING else _SCALING
    found: dict[str, Any] = {place: rope} if rope or place in values else {}
    return {**found, other: None} if other in values or other in overrides else found


def _changed(old: Any, new: Any) -> Any:
    """Rope options with new ones: merged, or if their kind is another one, in place of the old. A null changes none."""
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return old if new is None else new
    given = {key: value for key, value in new.items() if value is not None}
    kind = given.get("rope_type", given.get("type"))
    if kind is not None:
        given["rope_type"] = kind
        if kind != old.get("rope_type", old.get("type", "default")):
            return {**_common(old), **given}
    return {**old, **given}


def _common(rope: Mapping[str, Any]) -> dict[str, Any]:
    return {key: rope[key] for key in _OF_ANY_KIND if rope.get(key) is not None}


def _is_by_layer(rope: Any) -> bool:
    """Whether these are rope options for each kind of layer."""
    return isinstance(rope, Mapping) and any(isinstance(value, Mapping) for value in rope.values())
